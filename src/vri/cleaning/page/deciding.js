// Deciding, about one suspect or many; taking it back; the way out to review.csv and back in.

const decisions = new Decisions(overview.key);
const list = new CardList(byId("list"), buildCard, (group) => pairHead(group, isOpen));
const chooser = new Chooser(overview.classes);
const DONE = { keep: "kept", accept: "accepted", drop: "dropped" };
let exported = true; // nothing was decided since the last export

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

// The same decision about many, which is one step to take back.
function decideMany(numbers, kind) {
  if (numbers.length === 0) return say("All of these are decided.");
  decisions.change(numbers.map((number) => [number, { kind }]));
  refresh(`${count(numbers.length, "suspect")} ${DONE[kind]}; U takes it back`, numbers);
  const next = nextUndecided(list.shown, list.places.get(list.current) ?? -1);
  if (next !== undefined) goTo(next);
}

// A class by its name is the given label, the suggested one, or another.
function decideClass(number, label) {
  const { given, suggested } = suspects[number];
  if (label === given) decide(number, "keep");
  else if (label === suggested) decide(number, "accept");
  else decide(number, "other", label);
}

function act(number, kind) {
  if (kind === "other") chooser.open(suspects[number], (label) => decideClass(number, label));
  else decide(number, kind);
}

function actOther(number, place) {
  const other = suspects[number].others[place];
  if (other) decideClass(number, other.label);
  else say("No further class comes into question.");
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
  else list.refreshHeads();
  showProgress();
  say(message);
}

function showProgress() {
  const { reach } = arrangement;
  const done = Array.from(decisions.map.keys()).filter((number) => number < reach).length;
  const beyond = decisions.size > done ? `, ${(decisions.size - done).toLocaleString("en-GB")} beyond` : "";
  byId("counter").textContent = `${done.toLocaleString("en-GB")} of ${reach.toLocaleString("en-GB")} decided${beyond}`;
  byId("bar").max = Math.max(1, reach);
  byId("bar").value = done;
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

// ---- many at once

// The undecided ones on show whose suggestion is sure enough.
function sureEnough() {
  const least = Number(byId("many-sure").value) / 100 - 1e-9;
  return list.shown.filter((number) => isOpen(number) && suspects[number].confidence >= least);
}

function chosenKind() {
  return document.querySelector("#many [name=many-kind]:checked").value;
}

function countMany() {
  const numbers = sureEnough();
  const verb = { keep: "Keep", accept: "Accept", drop: "Drop" }[chosenKind()];
  byId("many-hint").textContent =
    `Of ${count(list.shown.length, "suspect")} on show, ${list.shown.filter(isOpen).length.toLocaleString("en-GB")} undecided. Filters and the slider change what is on show.`;
  byId("many-do").textContent = `${verb} ${numbers.length.toLocaleString("en-GB")}`;
  byId("many-do").disabled = numbers.length === 0;
}

function openMany() {
  countMany();
  byId("many").showModal();
}

function doMany() {
  byId("many").close();
  decideMany(sureEnough(), chosenKind());
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
