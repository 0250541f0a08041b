// Who labels in this browser: the name typed for this DB; else the one the server was given; else the last one typed.

export const labellerOf = ({ db, name }) =>
  localStorage.getItem(`labeller:${db}`) ?? (name || localStorage.getItem("labeller") || "");

export function rememberLabeller({ db }, name) {
  localStorage.setItem(`labeller:${db}`, name);
  localStorage.setItem("labeller", name);
}
