// A suspect as a card. The grid has the same cards, with less of them on show.

const ACTIONS = [
  ["keep", "Keep"], // the first letter of each is its key
  ["accept", "Accept"],
  ["drop", "Drop"],
  ["other", "Other"],
];
const OUTLIER = 0.5;

function makeCard(suspect, picture) {
  const card = element("article", {
    class: "card",
    tabindex: "-1",
    "aria-label": `${suspect.name}: given ${suspect.given}, suggested ${suspect.suggested}`,
  });
  const name = element("p", { class: "top" }, element("span", { class: "id", title: suspect.id }, suspect.id));
  if (suspect.outlier > OUTLIER) name.append(element("span", { class: "badge" }, "belongs to no class?"));
  card.append(name, cardContent(suspect, picture), cardAbout(suspect), cardMore(suspect), cardActions());
  return card;
}

function cardContent(suspect, picture) {
  const content = element("button", { type: "button", class: "content", title: "view the whole sample (V)" });
  if (picture) {
    content.setAttribute("aria-label", `View ${suspect.name}`);
    content.append(pictureOf(picture));
  } else if (suspect.text !== null) {
    content.append(element("span", { class: "text" }, suspect.text));
  } else {
    content.append(fieldsOf(suspect.fields.slice(0, 12)));
  }
  return content;
}

function cardAbout(suspect) {
  const label = (caption, name, kind) =>
    element("p", { class: `label ${kind}` }, element("span", { class: "caption" }, caption), " ", labelOf(name));
  const numbers = element("p", { class: "numbers" });
  numbers.append(
    element("span", { title: "probability of the suggested class" }, `${probability(suspect.confidence)} sure`),
    element("span", { title: "quality of the given label, from 0 to 1" }, `quality ${twoDigits(suspect.quality)}`),
  );
  const labels = element("div", { class: "labels" });
  labels.append(label("given", suspect.given, "given"), label("suggested", suspect.suggested, "suggested"));
  return element("div", { class: "about" }, labels, numbers);
}

function cardMore(suspect) {
  const more = element("div", { class: "more" });
  if (suspect.others.length > 0) more.append(othersOf(suspect));
  if (suspect.near.length > 0) {
    const words = tally(suspect.near);
    more.append(element("p", { class: "near", title: `labels of the samples most like it: ${words}` }, `neighbours ${words}`));
  }
  return more;
}

// A label that may break where a word ends, also at the signs that stand for spaces in names, but not within a word.
function labelOf(name) {
  const parts = name.split(/(?<=[_\-/\\.:,|])/);
  const longest = Math.max(...parts.flatMap((part) => part.split(" ")).map((word) => word.length));
  const size = longest > 24 ? "endless" : longest > 17 ? "tiny" : longest > 12 ? "small" : "";
  const made = element("b", { title: name, class: size || undefined });
  parts.forEach((part, i) => made.append(...(i > 0 ? [element("wbr")] : []), part));
  return made;
}

// The second and third class; to be chosen with a click, or the keys 2 and 3.
function othersOf(suspect) {
  const others = element("p", { class: "others" }, "or ");
  suspect.others.forEach(({ label, share }, i) => {
    const title = `change to ${label} (${i + 2})`;
    if (i > 0) others.append(" ");
    others.append(element("button", { type: "button", "data-label": label, title }, label, " ", element("small", {}, probability(share))));
  });
  return others;
}

// "3 cat, 1 dog"
function tally(labels) {
  const counts = new Map();
  for (const label of labels) counts.set(label, (counts.get(label) ?? 0) + 1);
  const most = Array.from(counts).sort(([, a], [, b]) => b - a);
  return most.map(([label, number]) => `${number} ${label}`).join(", ");
}

function cardActions() {
  const actions = element("div", { class: "actions" });
  for (const [kind, name] of ACTIONS) {
    const button = element("button", { type: "button", "data-kind": kind, "aria-pressed": "false", title: `${name} (${name[0]})` });
    button.append(element("span", {}, name));
    actions.append(button);
  }
  return actions;
}

function pictureOf(base64) {
  const image = element("img", { alt: "", src: `data:image/jpeg;base64,${base64}`, draggable: "false" });
  // Smoothing turns a tiny picture into fog.
  image.addEventListener("load", () => image.classList.toggle("pixels", image.naturalWidth < 64));
  return image;
}

function fieldsOf(fields) {
  const table = element("span", { class: "fields" });
  for (const [name, value] of fields) {
    table.append(element("span", { class: "name", title: name }, name), element("span", { class: "value", title: value }, value));
  }
  return table;
}

function showDecision(card, decision) {
  card.dataset.decision = decision?.kind ?? "";
  card.querySelector(".about").dataset.other = decision?.label ?? ""; // shown in the grid
  for (const button of card.querySelectorAll(".actions button")) {
    const chosen = button.dataset.kind === decision?.kind;
    button.setAttribute("aria-pressed", String(chosen));
    if (button.dataset.kind === "other") {
      button.firstChild.textContent = chosen ? decision.label : "Other";
      button.title = chosen ? decision.label : "Other (O)";
    }
  }
}

// The head of a pair of classes, with what can be done to all of its suspects at once.
function pairHead({ head, suspects: members }, isOpen) {
  const open = members.filter(isOpen).length;
  const words = open === members.length ? count(open, "suspect") : `${count(members.length, "suspect")}, ${open.toLocaleString("en-GB")} undecided`;
  const made = element("div", { class: "pair-head" });
  made.append(
    element("h3", {}, head.given, " ", element("span", { class: "arrow", "aria-label": "looks like" }, "→"), " ", head.suggested),
    element("span", { class: "hint" }, words),
  );
  for (const [kind, name] of ACTIONS.slice(0, 3)) {
    const title = `${name} all undecided suspects of this pair`;
    made.append(element("button", { type: "button", "data-many": kind, title, disabled: open === 0 }, `${name} all`));
  }
  return made;
}
