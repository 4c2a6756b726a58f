// Makes elements. Text from a record reaches the page through text nodes, never as markup.

const byId = (id) => document.getElementById(id);

// Characters that a browser would hide or obey: controls, line separators, direction marks. Joiners stay: some scripts need them.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]/gu;

function visible(text) {
  return String(text).replace(HIDDEN, (char) => {
    const code = char.codePointAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return "⟨" + code.toString(16).toUpperCase().padStart(4, "0") + "⟩";
  });
}

// el("div", "class names", child, ...): children are elements, texts, or null.
function el(tag, classes, ...children) {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : visible(child));
  }
  return element;
}

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function button(text, classes, action) {
  const element = el("button", classes, text);
  element.type = "button";
  element.addEventListener("click", action);
  return element;
}

function fold(summary, ...children) {
  return el("details", "fold", el("summary", "", summary), ...children);
}

// "" for null; a number that was not finite is null or text in the data.
function number(value, digits = 3) {
  if (typeof value !== "number") return value === null || value === undefined ? "" : String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size !== 0 && (size < 0.001 || size >= 1e6) ? value.toExponential(2) : String(Number(value.toFixed(digits)));
}

function plural(count, noun) {
  return `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
}

function seconds(value) {
  if (typeof value !== "number") return "";
  return value >= 10 ? value.toFixed(0) + " s" : value >= 0.1 ? value.toFixed(1) + " s" : (value * 1000).toFixed(value < 0.01 ? 1 : 0) + " ms";
}

function mean(values) {
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
}

function table(head, rows) {
  return el("table", "", el("thead", "", el("tr", "", head.map((cell) => el("th", "", cell)))),
    el("tbody", "", rows.map((row) => el("tr", "", row.map((cell) => el("td", "", cell))))));
}

// The one tooltip of the page.
function showTip(event, text) {
  const tip = byId("tip");
  tip.textContent = visible(text);
  tip.hidden = false;
  const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 18 + tip.offsetHeight < innerHeight;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = (below ? event.clientY + 18 : event.clientY - tip.offsetHeight - 10) + "px";
}

function hideTip() {
  byId("tip").hidden = true;
}
