// A suspect as a card, and the list of cards, of which only those near the window exist.

const ACTIONS = [
  { kind: "keep", name: "Keep", key: "K" },
  { kind: "accept", name: "Accept", key: "A" },
  { kind: "drop", name: "Drop", key: "D" },
  { kind: "other", name: "Other", key: "O" },
];
const GAP = 14; // px between cards
const SPARE_ROWS = 2; // drawn above and below the window, so that scrolling shows no holes
const OUTLIER = 0.5;

function makeCard(suspect, picture) {
  const card = element("article", {
    class: "card",
    tabindex: "-1",
    "aria-label": `${suspect.name}: given ${suspect.given}, suggested ${suspect.suggested}`,
  });
  card.append(cardContent(suspect, picture), cardAbout(suspect), cardActions());
  return card;
}

function cardContent(suspect, picture) {
  const content = element("button", { type: "button", class: "content", "data-view": true, title: "view the whole sample (V)" });
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
    element("p", { class: `label ${kind}` }, element("span", { class: "caption" }, caption), " ", element("b", { title: name }, name));
  const numbers = element("p", { class: "numbers" });
  numbers.append(
    element("span", { title: "probability of the suggested class" }, `${probability(suspect.confidence)} sure`),
    element("span", { title: "quality of the given label, from 0 to 1" }, `quality ${twoDigits(suspect.quality)}`),
  );
  const name = element("p", { class: "id", title: suspect.id }, suspect.id);
  const about = element(
    "div",
    { class: "about" },
    element("div", { class: "labels" }, label("given", suspect.given, "given"), label("suggested", suspect.suggested, "suggested")),
    numbers,
    name,
  );
  if (suspect.outlier > OUTLIER) about.append(element("p", { class: "badge" }, "belongs to no class?"));
  return about;
}

function cardActions() {
  const actions = element("div", { class: "actions" });
  for (const { kind, name, key } of ACTIONS) {
    actions.append(
      element("button", { type: "button", "data-kind": kind, "aria-pressed": "false" }, element("span", {}, name), element("kbd", {}, key)),
    );
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
  for (const button of card.querySelectorAll(".actions button")) {
    const chosen = button.dataset.kind === decision?.kind;
    button.setAttribute("aria-pressed", String(chosen));
    if (button.dataset.kind === "other") {
      button.firstChild.textContent = chosen ? decision.label : "Other";
      button.title = chosen ? decision.label : "";
    }
  }
}

// Cards of fixed size in as many columns as fit; `build(suspect)` makes one.
class CardList {
  constructor(box, build) {
    this.box = box;
    this.build = build;
    this.cards = new Map(); // suspect -> element, for those drawn
    this.shown = [];
    this.places = new Map(); // suspect -> place in shown
    this.current = -1;
  }

  show(suspects) {
    this.shown = suspects;
    this.places = new Map(suspects.map((suspect, place) => [suspect, place]));
    this.measure();
  }

  measure() {
    const style = getComputedStyle(this.box);
    const [narrowest, height] = ["--card-width", "--card-height"].map((name) => parseFloat(style.getPropertyValue(name)));
    this.columns = Math.max(1, Math.floor((this.box.clientWidth + GAP) / (narrowest + GAP)));
    this.width = (this.box.clientWidth - GAP * (this.columns - 1)) / this.columns;
    this.row = height + GAP;
    this.box.style.height = `${Math.ceil(this.shown.length / this.columns) * this.row}px`;
    this.draw();
  }

  draw() {
    const offset = -this.box.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(offset / this.row) - SPARE_ROWS);
    const last = Math.max(first, Math.ceil((offset + window.innerHeight) / this.row) + SPARE_ROWS);
    const wanted = this.shown.slice(first * this.columns, last * this.columns);
    const kept = new Set(wanted);
    const made = [];
    for (const [suspect, card] of this.cards) {
      if (!kept.has(suspect)) {
        card.remove();
        this.cards.delete(suspect);
      }
    }
    wanted.forEach((suspect, position) => {
      let card = this.cards.get(suspect);
      if (!card) {
        card = this.build(suspect);
        card.dataset.suspect = suspect;
        this.cards.set(suspect, card);
        made.push(card);
      }
      const place = this.places.get(suspect);
      card.style.width = `${this.width}px`;
      card.style.left = `${(place % this.columns) * (this.width + GAP)}px`;
      card.style.top = `${Math.floor(place / this.columns) * this.row}px`;
      card.classList.toggle("current", suspect === this.current);
      if (this.box.children[position] !== card) this.box.insertBefore(card, this.box.children[position] ?? null);
    });
    // Last, when all stand in their places: the browser lays them out once for all of these.
    const contents = made.map((card) => card.querySelector(".content"));
    const cut = contents.map(({ firstChild }) => firstChild.scrollHeight > firstChild.clientHeight + 1);
    contents.forEach((content, number) => content.classList.toggle("cut", cut[number]));
  }

  // Where the row of a suspect lies in the window.
  span(suspect) {
    const top = this.box.getBoundingClientRect().top + Math.floor(this.places.get(suspect) / this.columns) * this.row;
    return [top, top + this.row - GAP];
  }

  isVisible(suspect, ceiling) {
    if (!this.places.has(suspect)) return false;
    const [top, bottom] = this.span(suspect);
    return top >= ceiling - 1 && bottom <= window.innerHeight + 1;
  }

  // Make a suspect the current one, in sight below `ceiling` px and with the focus.
  goTo(suspect, ceiling) {
    this.current = suspect;
    if (!this.isVisible(suspect, ceiling)) {
      const [top, bottom] = this.span(suspect);
      const space = Math.max(0, window.innerHeight - ceiling - (bottom - top));
      window.scrollBy({ top: top - ceiling - space / 2, behavior: "instant" });
    }
    this.draw();
    this.cards.get(suspect)?.focus({ preventScroll: true });
  }
}
