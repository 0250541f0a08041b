// Markdown as DOM nodes, never as HTML: headings, bold, italics, code, bullets. Links stay as they are written.

const INLINE = /`([^`]+)`|\*\*(?=[^\s*])(.+?)\*\*|(?<![\w*])([*_])(?=\S)([^*_]+)\3(?![\w*])/g;

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

function inline(line) {
  const nodes = [];
  let end = 0;
  for (const found of line.matchAll(INLINE)) {
    const [whole, code, bold, , italic] = found;
    nodes.push(line.slice(end, found.index));
    if (code !== undefined) nodes.push(element("code", code));
    else nodes.push(element(bold === undefined ? "em" : "strong", ...inline(bold ?? italic)));
    end = found.index + whole.length;
  }
  return [...nodes, line.slice(end)];
}

function lines(text) {
  return text.split(/(\n)/).flatMap((line) => {
    const heading = /^#{1,6} +(.*)$/.exec(line);
    return heading ? [element("strong", ...inline(heading[1]))] : inline(line.replace(/^(\s*)[-*+] +/, "$1• "));
  });
}

// The nodes of a text, for an element that keeps white space.
export function markdown(text) {
  const parts = text.split(/^```[^\n]*\n([\s\S]*?)^```[^\S\n]*$/m); // every other one was between fences
  return parts.flatMap((part, at) => (at % 2 ? [element("code", part)] : lines(part)));
}
