// Ids of this tab and of its messages.

export function newId(prefix = "") {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return prefix + Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// One id a tab, kept over a reload. A duplicated tab starts with a copy and takes a new one.
export async function tabId() {
  let id = sessionStorage.getItem("page") ?? newId();
  const hold = (name) =>
    new Promise((resolve) => {
      if (!navigator.locks) return resolve(true);
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
