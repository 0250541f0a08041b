// What the panel says: progress, why this pair was chosen, and the line at the bottom.

const $ = (id) => document.getElementById(id);

export class Panel {
  constructor() {
    this.trouble = false; // the line is about the connection or the disk, and over when they are back
    this.problems = new Set(); // segments that were left out, each said once
  }

  say(text, { alert = false, trouble = false } = {}) {
    this.trouble = trouble;
    $("status").classList.toggle("alert", alert || trouble);
    $("status").textContent = text;
  }

  // Stands in the place of the clips.
  banner(text) {
    $("notice").hidden = !text;
    if ($("notice").textContent !== text) $("notice").textContent = text; // screen readers read each change
  }

  connection({ offline, blocked, waiting }) {
    if (blocked) {
      const kept = waiting ? ` ${waiting} answer${waiting > 1 ? "s are" : " is"} kept in this browser and sent again automatically.` : "";
      this.say(`Not saved: ${blocked.replace(/\.$/, "")}.${kept}`, { trouble: true });
    } else if (offline) {
      const kept = waiting ? `${waiting} answer${waiting > 1 ? "s wait" : " waits"} in this browser, not on disk yet.` : "";
      this.say(`The server does not answer. ${kept} Trying again.`, { trouble: true });
    } else if (this.trouble && !waiting) {
      this.say("Connected again.");
    }
  }

  // Why this pair was chosen. A repeat check reads as any random pair: a labeller who knows about it takes more care.
  reason(offer) {
    const text = offer ? offer.reason || (offer.repeat ? "" : offer.strategy) : "";
    Object.assign($("why"), { textContent: text, title: text && `Why this pair was chosen: ${text}` });
  }

  sizes(clips) {
    const [one, two] = clips.map(({ meta }) => meta);
    if (one.game && two.game && one.game !== two.game) {
      this.say(`These clips are from two games, ${one.game} and ${two.game}: X leaves the pair out.`, { alert: true });
    } else if (one.width !== two.width || one.height !== two.height) {
      this.say("These clips are of different sizes, perhaps from two games: X leaves the pair out.", { alert: true });
    }
  }

  leftOut(problem) {
    this.problems.add(problem);
    this.say(problem);
  }

  showProblems(problems) {
    const fresh = problems.filter((problem) => !this.problems.has(problem));
    for (const problem of fresh) this.problems.add(problem);
    if (fresh.length) this.say(`Left out: ${fresh[0]}`);
  }

  standing(standing) {
    const { total, goal, due, over, today, mine, per_minute: rate, checks, skipped } = standing;
    $("total").textContent = total;
    $("of").textContent = `${goal ? `of ${goal} ` : ""}label${goal || total !== 1 ? "s" : ""}`;
    $("of").title = `${skipped} can’t tell, not counted`;
    $("goal").hidden = !goal;
    if (goal) Object.assign($("goal"), { max: goal, value: Math.min(total, goal) });
    const parts = [`yours ${mine}`, `today ${today}`];
    if (Number.isInteger(due)) parts.unshift(due ? `${due} due` : "none due"); // where a training run asks for labels
    if (over) parts.unshift("the training is over");
    if (rate) parts.push(`${rate < 10 ? rate : Math.round(rate)} a minute`);
    if (goal && total >= goal) parts.push("goal reached: see Overview for the next step");
    else if (goal && rate) parts.push(`${duration((goal - total) / rate)} left`);
    $("pace").replaceChildren(...parts.map(words));
    const same = checks.filter(Boolean).length;
    $("checks").hidden = !checks.length;
    $("checks").replaceChildren(
      ...checks.map((agrees) => Object.assign(document.createElement("i"), { className: agrees ? "same" : "" })),
      `${same} of ${checks.length} the same when asked again`,
    );
  }
}

// A few words that stay on one line.
function words(text) {
  return Object.assign(document.createElement("span"), { textContent: text });
}

function duration(minutes) {
  if (minutes < 1) return "1 min";
  return minutes < 90 ? `${Math.round(minutes)} min` : `${(minutes / 60).toFixed(1)} h`;
}
