// Which suspects are on show, in which order and groups.

const naturally = new Intl.Collator("en", { numeric: true });
const ORDERS = {
  suspicious: { words: "most suspicious first", compare: (a, b) => a - b },
  sure: { words: "surest suggestion first", compare: (a, b) => suspects[b].confidence - suspects[a].confidence || a - b },
  unsure: { words: "least sure suggestion first", compare: (a, b) => suspects[a].confidence - suspects[b].confidence || a - b },
  odd: { words: "least like any class first", compare: (a, b) => suspects[b].outlier - suspects[a].outlier || a - b },
  name: { words: "by name", compare: (a, b) => naturally.compare(suspects[a].id, suspects[b].id) },
};

// How many of the worst are on show: by default those that were called wrong.
const arrangement = { reach: named, order: "suspicious" };

function fillFilters() {
  for (const side of ["given", "suggested"]) {
    const select = byId(`filter-${side}`);
    select.append(element("option", { value: "" }, "any"));
    overview.classes.forEach((name, number) => select.append(element("option", { value: number }, name)));
  }
  for (const [name, { words }] of Object.entries(ORDERS)) byId("order").append(element("option", { value: name }, words));
  byId("reach").max = suspects.length;
  byId("reach-box").hidden = suspects.length < 2;
  restoreArrangement();
  countLabels();
}

function countLabels() {
  for (const side of ["given", "suggested"]) {
    const counts = new Map();
    for (const suspect of suspects.slice(0, arrangement.reach)) {
      const number = suspect[`${side}Number`];
      counts.set(number, (counts.get(number) ?? 0) + 1);
    }
    overview.classes.forEach((name, number) => {
      byId(`filter-${side}`).options[number + 1].textContent = `${name} (${(counts.get(number) ?? 0).toLocaleString("en-GB")})`;
    });
  }
}

function restoreArrangement() {
  try {
    Object.assign(arrangement, JSON.parse(localStorage.getItem(`${decisions.key}:arrangement`)));
  } catch {
    // As at the first visit.
  }
  byId("reach").value = arrangement.reach;
  byId("order").value = arrangement.order;
}

function arrange() {
  const reach = Number(byId("reach").value);
  const moved = reach !== arrangement.reach;
  Object.assign(arrangement, { reach, order: byId("order").value });
  try {
    localStorage.setItem(`${decisions.key}:arrangement`, JSON.stringify(arrangement));
  } catch {
    // It holds for this visit.
  }
  if (moved) countLabels();
  filter();
  showProgress();
}

// What the position of the slider means.
function reachInWords() {
  const { reach } = arrangement;
  const all = named.toLocaleString("en-GB");
  if (reach === named) return named === 0 ? "none: no label looks wrong" : `the ${named === 1 ? "one" : all} that look${named === 1 ? "s" : ""} wrong`;
  const quality = `quality up to ${twoDigits(reachedQuality())}`;
  if (reach < named) return `the worst ${reach.toLocaleString("en-GB")} of ${all}, ${quality}`;
  return `${all} and ${(reach - named).toLocaleString("en-GB")} more, ${quality}`;
}

function reachedQuality() {
  return suspects[Math.max(arrangement.reach, 1) - 1].quality;
}

function showReach() {
  byId("reach-text").textContent = reachInWords();
  byId("reach").setAttribute("aria-valuetext", reachInWords());
  markReach(arrangement.reach === named ? null : reachedQuality());
}

function filter() {
  const given = byId("filter-given").value;
  const suggested = byId("filter-suggested").value;
  const state = byId("filter-state").value;
  const part = byId("filter-words").value.trim().toLowerCase();
  const shown = [];
  for (let number = 0; number < arrangement.reach; number += 1) {
    const suspect = suspects[number];
    const fits =
      (given === "" || suspect.givenNumber === Number(given)) &&
      (suggested === "" || suspect.suggestedNumber === Number(suggested)) &&
      (state === "all" || (state === "decided") === Boolean(decisions.get(number))) &&
      (part === "" || suspect.words.includes(part));
    if (fits) shown.push(number);
  }
  const { words, compare } = ORDERS[arrangement.order];
  shown.sort(compare);
  byId("show-all").hidden = given === "" && suggested === "" && state === "all" && part === "";
  byId("shown").textContent =
    shown.length === arrangement.reach
      ? `${count(shown.length, "suspect")}, ${words}`
      : `${shown.length.toLocaleString("en-GB")} of ${count(arrangement.reach, "suspect")}, ${words}`;
  showReach();
  byId("empty").hidden = shown.length > 0;
  byId("empty").textContent = arrangement.reach > 0 ? "No suspect fits these filters." : nothingWords();
  if (!shown.includes(list.current)) list.current = nextUndecided(shown, -1) ?? shown[0] ?? -1;
  list.show(byId("list").dataset.view === "pairs" ? inPairsOfClasses(shown) : [{ suspects: shown }]);
}

function nothingWords() {
  const more = suspects.length > 0 ? " Move the slider to see the labels that are least certain." : "";
  return `No label looks wrong: there is nothing to review.${more}`;
}

// Groups of the same given and suggested label, the largest first.
function inPairsOfClasses(shown) {
  const groups = new Map();
  for (const number of shown) {
    const { given, suggested, givenNumber, suggestedNumber } = suspects[number];
    const key = `${givenNumber} ${suggestedNumber}`;
    if (!groups.has(key)) groups.set(key, { head: { given, suggested }, suspects: [] });
    groups.get(key).suspects.push(number);
  }
  return Array.from(groups.values()).sort((a, b) => b.suspects.length - a.suspects.length);
}

// The first undecided one after `place`, from the start again if there is none.
function nextUndecided(shown, place) {
  return shown.slice(place + 1).find(isOpen) ?? shown.find(isOpen);
}

function isOpen(number) {
  return !decisions.get(number);
}

function choosePair(given, suggested) {
  byId("filters").reset();
  byId("filter-given").value = given;
  byId("filter-suggested").value = suggested;
  filter();
  byId("review").scrollIntoView({ behavior: "instant" });
  if (list.current >= 0) list.cards.get(list.current)?.focus({ preventScroll: true });
}
