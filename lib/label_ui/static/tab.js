// Ids of this tab and of its messages.

export function newId(prefix = "") {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return prefix + Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// Whether no other tab has this name, where there are no locks: over plain http to another machine.
function ask(name) {
  const tabs = new BroadcastChannel(`page-${name}`);
  return new Promise((resolve) => {
    tabs.onmessage = () => {
      tabs.close();
      resolve(false);
    };
    tabs.postMessage("taken?");
    setTimeout(() => {
      tabs.onmessage = ({ data }) => data === "taken?" && tabs.postMessage("yes");
      resolve(true);
    }, 200);
  });
}

// One id a tab, kept over a reload. A duplicated tab starts with a copy and takes a new one.
export async function tabId() {
  let id = sessionStorage.getItem("page") ?? newId();
  const hold = (name) =>
    new Promise((resolve) => {
      if (!navigator.locks) return ask(name).then(resolve);
      navigator.locks.request(`page-${name}`, { ifAvailable: true }, (lock) => {
        resolve(Boolean(lock));
        return lock ? new Promise(() => {}) : undefined;
      });
    });
  if (!(await hold(id))) {
    id = newId();
    sessionStorage.removeItem("offers");
    await hold(id);
  }
  sessionStorage.setItem("page", id);
  return id;
}
