// Answers on their way to the server. Each is put into localStorage before it is sent and stays there until the server
// has said that it is on disk, so neither a lost connection nor a closed tab loses one. The server counts an answer
// once however often it comes.

const RETRY = [500, 1000, 2000, 4000, 8000]; // ms
const TIMEOUT = 5000;

export async function request(path, body) {
  const response = await fetch(path, {
    method: body === undefined ? "GET" : "POST",
    headers: body === undefined ? {} : { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
    signal: AbortSignal.timeout(TIMEOUT),
  });
  if (response.ok) return response.json();
  throw await refusal(response);
}

// What the server says where it does not do what it was asked.
export async function refusal(response) {
  const said = await response.json().catch(() => ({}));
  const reason = said.error ?? said.detail ?? `the server answered ${response.status}`;
  return Object.assign(new Error(reason), { status: response.status });
}

export class Outbox {
  // onResult(op, reply) for each answer the server has settled; onState() when connection or queue changed.
  constructor(db, page, onResult, onState) {
    this.prefix = `answer:${db}:`;
    this.page = page;
    this.onResult = onResult;
    this.onState = onState;
    this.failures = 0;
    this.sending = null;
    this.timer = null;
    this.trouble = null; // why answers do not get through: "" where the server does not answer, else what it says
    this.ops = [];
    this.adopt();
    addEventListener("online", () => this.flush());
  }

  // Takes over what this or a closed tab left behind.
  adopt() {
    const keys = Object.keys(localStorage).filter((key) => key.startsWith(this.prefix)).sort();
    this.ops = keys.map((key) => ({ key, ...JSON.parse(localStorage.getItem(key)) }));
    this.time = Number(keys.at(-1)?.slice(this.prefix.length).split("-")[0] ?? 0);
  }

  get offline() {
    return this.trouble === "";
  }

  // Why the server cannot take answers now although it is there.
  get blocked() {
    return this.trouble ?? "";
  }

  get waiting() {
    return this.ops.length;
  }

  add(path, body) {
    this.time = Math.max(this.time + 1, Date.now()); // one after the other even where the clock is set back
    const op = { key: `${this.prefix}${this.time.toString().padStart(15, "0")}-${this.page}`, path, body };
    try {
      localStorage.setItem(op.key, JSON.stringify({ path, body }));
    } catch {
      // Storage is full or off: the answer still waits here in memory.
    }
    this.ops.push(op);
    return op;
  }

  // Sends what waits, in order. Resolves when nothing is left or the server cannot be reached.
  flush() {
    this.sending ??= this.send().finally(() => {
      this.sending = null;
    });
    return this.sending;
  }

  async send() {
    clearTimeout(this.timer);
    this.timer = null;
    while (this.ops.length) {
      const op = this.ops[0];
      let reply;
      try {
        reply = await request(op.path, op.body);
      } catch (error) {
        if (error.status !== 422) return this.failed(error.status ? error.message : ""); // perhaps of another program
        reply = { outcome: "dropped", reason: error.message };
      }
      this.ops.shift();
      localStorage.removeItem(op.key);
      this.reached();
      this.onResult(op, reply);
    }
  }

  failed(reason) {
    this.trouble = reason;
    for (const op of this.ops) op.late = true;
    const wait = RETRY[Math.min(this.failures, RETRY.length - 1)];
    this.failures += 1;
    // One that is due already stays: other requests that fail meanwhile may not put the answers off again and again.
    this.timer ??= setTimeout(() => {
      this.timer = null;
      this.flush();
    }, wait);
    this.onState();
  }

  reached() {
    const over = this.trouble !== null;
    this.trouble = null;
    this.failures = 0;
    if (over) this.onState();
  }
}
