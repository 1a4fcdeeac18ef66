// The page: what was measured, then the suspects, and what keys and buttons do.

const narrow = matchMedia("(max-width: 560px)");

// ---- head

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

function addFact(name, value, note) {
  const words = typeof value === "number" ? value.toLocaleString("en-GB") : value;
  byId("facts").append(
    element("div", {}, element("dt", {}, name), element("dd", {}, element("b", {}, words), element("span", {}, note))),
  );
}

function fillRemarks() {
  const { remarks } = overview;
  byId("remarks").hidden = remarks.length === 0;
  byId("remarks-title").textContent = remarks.length === 1 ? "Worth a look first" : `Worth a look first: ${remarks.length} remarks`;
  byId("remarks-list").append(...remarks.map((remark) => element("li", {}, remark)));
}

// On a phone the suspects come first, and what is above them waits behind its title.
function fold() {
  for (const part of document.querySelectorAll("details")) part.open = !narrow.matches;
}

// ---- views

function setView(view) {
  byId("list").dataset.view = document.body.dataset.view = view;
  for (const button of document.querySelectorAll("#views button")) {
    button.setAttribute("aria-pressed", String(button.dataset.viewName === view));
  }
  list.clear();
  filter();
  if (list.current >= 0) goTo(list.current);
}

// Where cards are in sight: below the bar, and above the buttons of the grid.
function sight() {
  const deck = byId("deck").offsetHeight;
  return [byId("progress").offsetHeight + 8, window.innerHeight - deck];
}

function goTo(number) {
  list.goTo(number, ...sight());
}

// ---- keys

// True if the current card is in sight. If not, nothing must be decided blindly: a card in sight becomes the current one.
function currentInSight() {
  const [, floor] = sight();
  const ceiling = byId("progress").getBoundingClientRect().bottom;
  if (list.isVisible(list.current, ceiling, floor)) return true;
  const first = list.shown.find((number) => list.cards.has(number) && list.isVisible(number, ceiling, floor));
  goTo(first ?? list.current);
  return false;
}

function acceptInSight() {
  const ceiling = byId("progress").getBoundingClientRect().bottom;
  const seen = (number) => list.cards.has(number) && list.isVisible(number, ceiling, sight()[1]);
  decideMany(list.shown.filter((number) => isOpen(number) && seen(number)), "accept");
}

function step(by) {
  const place = Math.min(Math.max(list.places.get(list.current) + by, 0), list.shown.length - 1);
  goTo(list.shown[place]);
}

const KEYS = {
  k: () => act(list.current, "keep"),
  a: () => act(list.current, "accept"),
  A: acceptInSight,
  d: () => act(list.current, "drop"),
  o: () => act(list.current, "other"),
  2: () => actOther(list.current, 0),
  3: () => actOther(list.current, 1),
  v: () => view(list.current),
  j: () => step(1),
  J: () => step(-1),
  h: () => step(-1),
  ArrowRight: () => step(1),
  ArrowLeft: () => step(-1),
  ArrowDown: () => goTo(list.beside(list.current, 1)),
  ArrowUp: () => goTo(list.beside(list.current, -1)),
};

function view(number) {
  showDetails(suspects[number], pictureFor(number), neighboursOf(number));
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.shiftKey || event.key.length > 1 ? event.key : event.key.toLowerCase();
  if (byId("details").open) return onKeyInDetails(event, key);
  const slider = event.target.type === "range";
  if (slider ? key.startsWith("Arrow") : event.target.closest("input, select, textarea, dialog")) return;
  if (key === "?") return byId("keys").showModal();
  if (key === "u") return undo();
  if (key === "g") return setView(document.body.dataset.view === "grid" ? "cards" : "grid");
  if (key === "p") return setView(document.body.dataset.view === "pairs" ? "cards" : "pairs");
  if (key === "Escape" && document.body.dataset.view === "grid") return setView("cards");
  if (key === "/") {
    event.preventDefault();
    if (document.body.dataset.view === "grid") setView("cards");
    byId("controls").open = true;
    return byId("filter-words").focus();
  }
  const run = KEYS[key] ?? KEYS[key.toLowerCase()];
  if (!run || list.shown.length === 0) return;
  if (key === "ArrowDown" || key === "ArrowUp") {
    // Above the list these scroll the page, and up from the first row leads out of it.
    const leaving = key === "ArrowUp" && list.beside(list.current, -1) === list.current;
    if (leaving || !list.isVisible(list.current, ...sight())) return;
  }
  event.preventDefault();
  if (currentInSight()) run();
}

// With the whole of a sample in view one can decide, and go on to the next.
function onKeyInDetails(event, key) {
  if (key === "v") return byId("details").close();
  const run = "kado23jhJ".includes(key) && KEYS[key];
  if (!run) return;
  event.preventDefault();
  byId("details").close();
  run();
  if (key !== "o") view(list.current);
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

function onListClick(event) {
  const many = event.target.closest("[data-many]");
  if (many) {
    const [group] = Array.from(list.heads).find(([, head]) => head.contains(many));
    return decideMany(group.suspects.filter(isOpen), many.dataset.many);
  }
  const card = event.target.closest(".card");
  if (!card) return;
  const number = Number(card.dataset.suspect);
  const action = event.target.closest(".actions button");
  const other = event.target.closest("[data-label]");
  if (action?.getAttribute("aria-pressed") === "true" && action.dataset.kind !== "other") {
    decisions.change([[number, undefined]]);
    refresh(`${suspects[number].name}: taken back`, [number]);
  } else if (action) {
    act(number, action.dataset.kind);
  } else if (other) {
    decideClass(number, other.dataset.label);
  } else if (document.body.dataset.view === "grid") {
    goTo(number);
  } else if (event.target.closest(".content")) {
    view(number);
  }
}

function onCardFocus(event) {
  const card = event.target.closest(".card");
  if (!card) return;
  list.current = Number(card.dataset.suspect);
  for (const other of list.cards.values()) other.classList.toggle("current", other === card);
  const { name, given, suggested, confidence } = suspects[list.current];
  byId("deck-text").textContent = `${name}: ${given} → ${suggested}, ${probability(confidence)} sure`;
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
  showReach();
  list.measure();
}

function start() {
  restoreTheme();
  fillHead();
  fillRemarks();
  fillFilters();
  drawMap(overview, choosePair);
  drawPairs(overview, choosePair);
  drawHistogram(overview, byId("histogram").clientWidth);
  fold();
  byId("list").dataset.kind = overview.kind;
  byId("list").dataset.view = document.body.dataset.view = "cards";
  filter();
  showProgress();
  if (suspects.length > 0 && matchMedia("(hover: hover)").matches) say("Press ? for the keys.");

  window.addEventListener("scroll", onceAFrame(() => list.draw()), { passive: true });
  window.addEventListener("resize", onceAFrame(onResize));
  narrow.addEventListener("change", fold);
  byId("overview-panels").addEventListener("toggle", onResize);
  byId("controls").addEventListener("toggle", () => list.draw());
  byId("remarks").addEventListener("toggle", () => list.draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
  document.addEventListener("keydown", onKey);
  byId("list").addEventListener("click", onListClick);
  byId("list").addEventListener("dblclick", (event) => {
    const card = event.target.closest(".card");
    if (card && document.body.dataset.view === "grid") view(Number(card.dataset.suspect));
  });
  byId("list").addEventListener("focusin", onCardFocus);
  byId("views").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) setView(button.dataset.viewName);
  });
  byId("deck").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button && list.shown.length > 0 && currentInSight()) KEYS[button.dataset.key]();
  });
  byId("filters").addEventListener("input", filter);
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("filters").addEventListener("reset", () => setTimeout(filter)); // the fields change after the event
  byId("reach").addEventListener("input", onceAFrame(arrange));
  byId("order").addEventListener("input", arrange);
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
  byId("open-many").addEventListener("click", openMany);
  byId("many").addEventListener("input", countMany);
  byId("many-form").addEventListener("submit", (event) => {
    event.preventDefault();
    doMany();
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
