// Making elements and wording numbers. Names of the user's only ever become text, never markup.

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  setAttributes(made, attributes);
  made.append(...children);
  return made;
}

function drawing(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  setAttributes(made, attributes);
  made.append(...children);
  return made;
}

function setAttributes(target, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) target.setAttribute(name, value === true ? "" : value);
  }
}

function byId(id) {
  return document.getElementById(id);
}

function readBlock(id) {
  const block = byId(id);
  return block && JSON.parse(block.textContent);
}

function count(number, noun) {
  return `${number.toLocaleString("en-GB")} ${noun}${number === 1 ? "" : "s"}`;
}

function percent(share, digits = 0) {
  return `${(100 * share).toFixed(digits)}\u202f%`;
}

// A probability that is merely near 1 must not read as certainty, nor one near 0 as nothing.
function probability(share) {
  if (share > 0 && share < 0.01) return "<1\u202f%";
  return share > 0.99 && share < 1 ? ">99\u202f%" : percent(share);
}

function twoDigits(number) {
  return number > 0 && number < 0.01 ? "<0.01" : number.toFixed(2);
}
