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
  // Behind the last line that can close a fence none opens, and each search for its end would go through all that follows.
  const last = [...text.matchAll(/^```[^\S\n]*$/gm)].at(-1);
  const end = last ? last.index + last[0].length : 0;
  const parts = text.slice(0, end).split(/^```[^\n]*\n([\s\S]*?)^```[^\S\n]*$/m); // every other one was between fences
  parts.push(parts.pop() + text.slice(end));
  return parts.flatMap((part, at) => (at % 2 ? [element("code", part)] : lines(part)));
}
