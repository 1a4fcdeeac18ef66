// The page: what was measured, then the suspects and what is decided about them.

const overview = readBlock("overview");
const suspects = readSuspects();
const decisions = new Decisions(overview.key);
const list = new CardList(byId("list"), buildCard);
const chooser = new Chooser(overview.classes);
let exported = true; // nothing was decided since the last export

function readSuspects() {
  const rows = [];
  for (let number = 0, block; (block = readBlock(`suspects-${number}`)); number += 1) rows.push(...block);
  return rows.map(([id, given, suggested, quality, confidence, outlier, text, cells]) => ({
    id,
    name: overview.kind === "image" ? id : `id ${id}`, // a bare number of a row would say little
    givenNumber: given,
    suggestedNumber: suggested,
    given: overview.classes[given],
    suggested: overview.classes[suggested],
    quality,
    confidence,
    outlier,
    text,
    get fields() {
      return Array.from({ length: cells.length / 2 }, (_, i) => [overview.columns[cells[2 * i]], cells[2 * i + 1]]);
    },
  }));
}

// Pictures are most of the file: a block of them is decoded when it is needed, and a few blocks are kept.
const pictureBlocks = new Map();
function pictureFor(suspect) {
  const number = Math.floor(suspect / overview.batch);
  if (!pictureBlocks.has(number)) {
    pictureBlocks.set(number, readBlock(`pictures-${number}`));
    if (pictureBlocks.size > 12) pictureBlocks.delete(pictureBlocks.keys().next().value);
  }
  return pictureBlocks.get(number)?.[suspect % overview.batch] ?? null;
}

// ---- head and charts

function fillHead() {
  document.title = `${overview.source} – label review`;
  byId("source").textContent = overview.source;
  byId("headline").textContent = overview.headline;
  byId("version").textContent = overview.version;
  byId("command").textContent = overview.command;
  const capped = overview.shown < overview.issues ? `the ${overview.shown.toLocaleString("en-GB")} most suspicious are below` : "";
  addFact("labels", overview.samples, `in ${overview.classes.length} ${overview.classes.length === 1 ? "class" : "classes"}`);
  addFact("suspects", overview.issues, capped || `quality below ${overview.threshold.toFixed(2)}`);
  addFact("trusted", overview.trusted, overview.trusted ? "known to be right" : "none known");
  const { accuracy_before: before, accuracy_after: after } = overview;
  if (after !== null) {
    const words = before === null ? percent(after, 1) : `${percent(before, 1)} → ${percent(after, 1)}`;
    addFact(before === null ? "accuracy" : "accuracy, plain training → vri", words, `on ${overview.accuracy_on}`);
  }
  byId("histogram-hint").textContent =
    `${overview.issues.toLocaleString("en-GB")} of ${count(overview.samples, "label")} lie below the threshold.`;
}

function fillRemarks() {
  byId("remarks").hidden = overview.remarks.length === 0;
  byId("remarks-list").append(...overview.remarks.map((remark) => element("li", {}, remark)));
}

function addFact(name, value, note) {
  const words = typeof value === "number" ? value.toLocaleString("en-GB") : value;
  byId("facts").append(
    element("div", {}, element("dt", {}, name), element("dd", {}, element("b", {}, words), element("span", {}, note))),
  );
}

function choosePair(given, suggested) {
  byId("filters").reset();
  byId("filter-given").value = given;
  byId("filter-suggested").value = suggested;
  filter();
  byId("review").scrollIntoView({ behavior: "instant" });
  if (list.current >= 0) list.cards.get(list.current)?.focus({ preventScroll: true });
}

// ---- filters

function fillFilters() {
  for (const side of ["given", "suggested"]) {
    const counts = new Map();
    for (const suspect of suspects) {
      const number = suspect[`${side}Number`];
      counts.set(number, (counts.get(number) ?? 0) + 1);
    }
    const select = byId(`filter-${side}`);
    select.append(element("option", { value: "" }, "any"));
    overview.classes.forEach((name, number) => {
      const words = `${name} (${(counts.get(number) ?? 0).toLocaleString("en-GB")})`;
      select.append(element("option", { value: number }, words));
    });
  }
}

function filter() {
  const given = byId("filter-given").value;
  const suggested = byId("filter-suggested").value;
  const state = byId("filter-state").value;
  const part = byId("filter-id").value.trim().toLowerCase();
  const shown = [];
  suspects.forEach((suspect, number) => {
    const fits =
      (given === "" || suspect.givenNumber === Number(given)) &&
      (suggested === "" || suspect.suggestedNumber === Number(suggested)) &&
      (state === "all" || (state === "decided") === Boolean(decisions.get(number))) &&
      (part === "" || suspect.id.toLowerCase().includes(part));
    if (fits) shown.push(number);
  });
  const all = shown.length === suspects.length;
  byId("show-all").hidden = given === "" && suggested === "" && state === "all" && part === "";
  byId("shown").textContent = all
    ? `${count(suspects.length, "suspect")}, most suspicious first`
    : `${shown.length.toLocaleString("en-GB")} of ${count(suspects.length, "suspect")}`;
  byId("empty").hidden = shown.length > 0;
  byId("empty").textContent = suspects.length === 0 ? "No label looks wrong: there is nothing to review." : "No suspect fits these filters.";
  if (!shown.includes(list.current)) {
    list.current = shown.find((number) => number > list.current && !decisions.get(number)) ?? nextUndecided(shown, -1) ?? shown[0] ?? -1;
  }
  list.show(shown);
}

// The first undecided one after `place`, from the start again if there is none.
function nextUndecided(shown, place) {
  const open = (number) => !decisions.get(number);
  return shown.slice(place + 1).find(open) ?? shown.find(open);
}

// ---- decisions

function buildCard(number) {
  const card = makeCard(suspects[number], pictureFor(number));
  showDecision(card, decisions.get(number));
  return card;
}

function decide(number, kind, label) {
  const place = list.places.get(number);
  decisions.change([[number, { kind, label }]]);
  const { name, given, suggested } = suspects[number];
  const did = { keep: `kept as ${given}`, accept: `changed to ${suggested}`, drop: "dropped", other: `changed to ${label}` };
  list.current = number;
  refresh(`${name}: ${did[kind]}`, [number]);
  // With the undecided alone on show, the decided card has left and the next one stands in its place.
  const next = nextUndecided(list.shown, list.places.has(number) ? place : place - 1);
  if (next !== undefined) goTo(next);
  else say(`${name}: ${did[kind]}. Every suspect shown is decided.`);
}

function chooseOther(number) {
  const suspect = suspects[number];
  chooser.open(suspect, (label) => {
    if (label === suspect.given) decide(number, "keep");
    else if (label === suspect.suggested) decide(number, "accept");
    else decide(number, "other", label);
  });
}

function act(number, kind) {
  if (kind === "other") chooseOther(number);
  else decide(number, kind);
}

function undo() {
  const changed = decisions.undo();
  if (changed.length === 0) return say("Nothing to undo.");
  refresh(changed.length === 1 ? `${suspects[changed[0]].name}: taken back` : `${count(changed.length, "decision")} put back`, changed);
  if (changed.length === 1 && list.places.has(changed[0])) goTo(changed[0]);
}

// After decisions changed: cards, counter, and what is on show.
function refresh(message, changed) {
  for (const number of changed) {
    const card = list.cards.get(number);
    if (card) showDecision(card, decisions.get(number));
  }
  exported = false;
  if (byId("filter-state").value !== "all") filter();
  showProgress();
  say(message);
}

function showProgress() {
  byId("counter").textContent = `${decisions.size.toLocaleString("en-GB")} of ${suspects.length.toLocaleString("en-GB")} decided`;
  byId("bar").max = Math.max(1, suspects.length);
  byId("bar").value = decisions.size;
  byId("export").disabled = byId("clear").disabled = decisions.size === 0;
  byId("undo").disabled = decisions.size === 0 && decisions.history.length === 0;
  byId("notice").hidden = decisions.stored;
  if (!decisions.stored) {
    byId("notice").textContent =
      "This browser does not keep decisions for this page. You can review as usual, but export review.csv before you close it.";
  }
}

function say(message) {
  byId("message").textContent = message;
}

function goTo(number) {
  list.goTo(number, byId("progress").offsetHeight + 8);
}

// ---- export and import

function reviewRows() {
  const rows = Array.from(decisions.map.entries()).sort(([a], [b]) => a - b);
  return rows.map(([number, { kind, label }]) => {
    const { id, given, suggested } = suspects[number];
    return [id, given, suggested, kind, { keep: given, accept: suggested, drop: "", other: label }[kind]];
  });
}

function exportReview() {
  const address = URL.createObjectURL(new Blob([writeCsv([REVIEW_COLUMNS, ...reviewRows()])], { type: "text/csv;charset=utf-8" }));
  element("a", { href: address, download: "review.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
  exported = true;
  say(`${count(decisions.size, "decision")} exported`);
}

async function importReview(file) {
  try {
    const [changes, others] = readReview(parseCsv(await file.text()));
    if (changes.length > 0) decisions.change(changes);
    const note = others > 0 ? `; ${count(others, "row")} left out, as they are not about this report` : "";
    refresh(`${count(changes.length, "decision")} imported${note}`, changes.map(([number]) => number));
  } catch (error) {
    say(`${file.name} was not imported: ${error.message}`);
  }
}

// [changes, number of rows about other samples or labels]; an error if it isn't a review.csv.
function readReview([header, ...rows]) {
  if (header?.join() !== REVIEW_COLUMNS.join()) throw new Error(`expected the columns ${REVIEW_COLUMNS.join(", ")}`);
  const numbers = new Map(suspects.map(({ id }, number) => [id, number]));
  const changes = [];
  rows.forEach(([id, given, suggested, kind, label], at) => {
    if (!DECISION_KINDS.includes(kind)) throw new Error(`row ${at + 2} has the decision “${kind}”, expected ${DECISION_KINDS.join(", ")}`);
    if (kind === "other" && !label) throw new Error(`row ${at + 2} names no new label`);
    const number = numbers.get(id);
    const same = number !== undefined && suspects[number].given === given && suspects[number].suggested === suggested;
    if (same) changes.push([number, { kind, label: kind === "other" ? label : undefined }]);
  });
  return [changes, rows.length - changes.length];
}

function askToClear() {
  byId("confirm-text").textContent = `${count(decisions.size, "decision")} will be taken back. Undo brings them back until the page is closed.`;
  byId("confirm").showModal();
}

function clearAll() {
  byId("confirm").close();
  const numbers = Array.from(decisions.map.keys());
  decisions.change(numbers.map((number) => [number, undefined]));
  refresh(`${count(numbers.length, "decision")} cleared`, numbers);
}

// ---- keys

// True if the current card is in sight. If not, nothing must be decided blindly: a card in sight becomes the current one.
function currentInSight() {
  const ceiling = byId("progress").getBoundingClientRect().bottom;
  if (list.isVisible(list.current, ceiling)) return true;
  const first = list.shown.find((number) => list.cards.has(number) && list.isVisible(number, ceiling));
  goTo(first ?? list.current);
  return false;
}

function step(by) {
  const place = Math.min(Math.max(list.places.get(list.current) + by, 0), list.shown.length - 1);
  goTo(list.shown[place]);
}

const KEYS = {
  k: () => act(list.current, "keep"),
  a: () => act(list.current, "accept"),
  d: () => act(list.current, "drop"),
  o: () => act(list.current, "other"),
  v: () => view(list.current),
  j: () => step(1),
  J: () => step(-1),
  h: () => step(-1),
  ArrowRight: () => step(1),
  ArrowLeft: () => step(-1),
  ArrowDown: () => step(list.columns),
  ArrowUp: () => step(-list.columns),
};

function view(number) {
  showDetails(suspects[number], pictureFor(number));
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
  if (event.key === "?") return byId("keys").showModal();
  const key = event.shiftKey || event.key.length > 1 ? event.key : event.key.toLowerCase();
  if (key === "u") return undo();
  const run = KEYS[key] ?? KEYS[key.toLowerCase()];
  if (!run || list.shown.length === 0) return;
  if (key === "ArrowDown" || key === "ArrowUp") {
    // Above the list these scroll the page, and up from the first row leads out of it.
    const leaving = key === "ArrowUp" && list.places.get(list.current) < list.columns;
    if (leaving || !list.isVisible(list.current, byId("progress").offsetHeight)) return;
  }
  event.preventDefault();
  if (currentInSight()) run();
}

// ---- theme

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function showTheme() {
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", `Change to ${isDark() ? "light" : "dark"} colours`);
}

function toggleTheme() {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  try {
    localStorage.setItem("vri-theme", document.documentElement.dataset.theme);
  } catch {
    // The choice holds for this visit.
  }
  showTheme();
}

function restoreTheme() {
  try {
    const theme = localStorage.getItem("vri-theme");
    if (theme) document.documentElement.dataset.theme = theme;
  } catch {
    // As the system has it.
  }
  showTheme();
}

// ---- wiring

function onCardClick(event) {
  const card = event.target.closest(".card");
  if (!card) return;
  const number = Number(card.dataset.suspect);
  const action = event.target.closest("[data-kind]");
  if (action?.getAttribute("aria-pressed") === "true" && action.dataset.kind !== "other") {
    decisions.change([[number, undefined]]);
    refresh(`${suspects[number].name}: taken back`, [number]);
  } else if (action) {
    act(number, action.dataset.kind);
  } else if (event.target.closest("[data-view]")) {
    view(number);
  }
}

function onCardFocus(event) {
  const card = event.target.closest(".card");
  if (!card) return;
  list.current = Number(card.dataset.suspect);
  for (const other of list.cards.values()) other.classList.toggle("current", other === card);
}

function onceAFrame(run) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      run();
    });
  };
}

function onResize() {
  drawHistogram(overview, byId("histogram").clientWidth);
  list.measure();
}

function start() {
  restoreTheme();
  fillHead();
  fillRemarks();
  drawMap(overview, choosePair);
  drawPairs(overview, choosePair);
  drawHistogram(overview, byId("histogram").clientWidth);
  fillFilters();
  byId("list").dataset.kind = overview.kind;
  byId("list").classList.toggle("long", overview.classes.some((name) => name.length > 12));
  filter();
  showProgress();
  if (suspects.length > 0 && matchMedia("(hover: hover)").matches) say("Press ? for the keys.");

  window.addEventListener("scroll", onceAFrame(() => list.draw()), { passive: true });
  window.addEventListener("resize", onceAFrame(onResize));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
  document.addEventListener("keydown", onKey);
  byId("list").addEventListener("click", onCardClick);
  byId("list").addEventListener("focusin", onCardFocus);
  byId("filters").addEventListener("input", filter);
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("filters").addEventListener("reset", () => setTimeout(filter)); // the fields change after the event
  byId("theme").addEventListener("click", toggleTheme);
  byId("undo").addEventListener("click", undo);
  byId("help").addEventListener("click", () => byId("keys").showModal());
  byId("export").addEventListener("click", exportReview);
  byId("import").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    if (file) await importReview(file);
    event.target.value = ""; // so that the same file can be chosen again
  });
  byId("clear").addEventListener("click", askToClear);
  byId("confirm-clear").addEventListener("click", clearAll);
  for (const button of document.querySelectorAll("[data-close]")) {
    button.addEventListener("click", () => button.closest("dialog").close());
  }
  window.addEventListener("storage", ({ key }) => {
    if (key !== decisions.key) return; // another tab with the same report
    decisions.load();
    decisions.history = [];
    for (const [number, card] of list.cards) showDecision(card, decisions.get(number));
    filter();
    showProgress();
  });
  window.addEventListener("beforeunload", (event) => {
    if (!decisions.stored && !exported && decisions.size > 0) event.preventDefault();
  });
}

start();
