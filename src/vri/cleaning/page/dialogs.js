// Dialogs: the chooser of another class, and the whole of a sample.

class Chooser {
  constructor(classes) {
    this.classes = classes;
    this.dialog = byId("chooser");
    this.search = byId("chooser-search");
    this.list = byId("chooser-list");
    this.search.addEventListener("input", () => this.fill());
    this.search.addEventListener("keydown", (event) => this.onKey(event));
    this.list.addEventListener("click", (event) => this.take(event.target.closest("[role=option]")));
  }

  // done(label) is called when a class is chosen.
  open(suspect, done) {
    this.done = done;
    byId("chooser-hint").textContent = `${suspect.name}: given ${suspect.given}, suggested ${suspect.suggested}`;
    this.search.value = "";
    this.fill();
    this.dialog.showModal();
    this.search.focus();
  }

  fill() {
    const typed = this.search.value.trim();
    const names = this.classes.filter((name) => name.toLowerCase().includes(typed.toLowerCase()));
    const options = names.map((name) => this.option(name, name));
    const exact = options.find((option) => option.dataset.label.toLowerCase() === typed.toLowerCase());
    if (typed && !this.classes.includes(typed)) options.push(this.option(typed, `new class “${typed}”`));
    options.forEach((option, number) => (option.id = `option-${number}`));
    this.list.replaceChildren(...options);
    this.mark(exact ?? options[0]);
  }

  option(label, words) {
    return element("div", { role: "option", "data-label": label, "aria-selected": "false" }, words);
  }

  mark(option) {
    this.marked?.setAttribute("aria-selected", "false");
    this.marked = option;
    if (!option) return;
    option.setAttribute("aria-selected", "true");
    option.scrollIntoView({ block: "nearest" });
    this.search.setAttribute("aria-activedescendant", option.id);
  }

  onKey(event) {
    if (event.key === "ArrowDown") this.mark(this.marked?.nextElementSibling ?? this.marked);
    else if (event.key === "ArrowUp") this.mark(this.marked?.previousElementSibling ?? this.marked);
    else if (event.key === "Enter") this.take(this.marked);
    else if (event.key === "Escape") this.dialog.close(); // a search field would only be emptied
    else return;
    event.preventDefault();
  }

  take(option) {
    if (!option) return;
    this.dialog.close();
    this.done(option.dataset.label);
  }
}

function showDetails(suspect, picture, neighbours) {
  byId("details-title").textContent = suspect.name;
  const classes = [{ label: suspect.suggested, share: suspect.confidence }, ...suspect.others];
  const words = classes.map(({ label, share }) => `${label} ${probability(share)}`).join(", ");
  const body = byId("details-body");
  body.replaceChildren(element("p", { class: "hint" }, `given ${suspect.given}, suggested ${words}`));
  if (picture) body.append(pictureOf(picture));
  if (suspect.text !== null) body.append(element("p", { class: "text" }, suspect.text));
  const rows = neighbours.some(({ fields }) => fields.length > 0);
  if (suspect.fields.length > 0) body.append(rows ? fieldsBeside(suspect, neighbours) : fieldsOf(suspect.fields));
  if (neighbours.length > 0 && !rows) body.append(element("h3", {}, "Most like it"), neighbourhood(suspect, neighbours));
  byId("details").showModal();
  byId("details").querySelector("[data-close]").focus({ preventScroll: true }); // "autofocus" would act on loading, too
  byId("details").scrollTop = 0;
}

function neighbourLabel(suspect, name) {
  const kind = name === suspect.given ? "is-given" : name === suspect.suggested ? "is-suggested" : undefined;
  return element("b", { class: kind }, name);
}

function neighbourhood(suspect, neighbours) {
  const box = element("ul", { class: "neighbours" });
  for (const { id, label, text, picture } of neighbours) {
    const one = element("li", { title: id });
    if (picture) one.append(pictureOf(picture));
    one.append(neighbourLabel(suspect, label), element("span", { class: "hint" }, text ?? id));
    box.append(one);
  }
  return box;
}

// A row of a table, and those most like it, as columns.
function fieldsBeside(suspect, neighbours) {
  const heading = element("tr", {}, element("td"), element("th", { scope: "col" }, "this one"));
  for (const { id, label } of neighbours) {
    heading.append(element("th", { scope: "col", title: id }, "like ", neighbourLabel(suspect, label)));
  }
  const others = neighbours.map(({ fields }) => new Map(fields));
  const rows = suspect.fields.map(([name, value]) => {
    const cells = [value, ...others.map((fields) => fields.get(name) ?? "")];
    return element("tr", {}, element("th", { scope: "row" }, name), ...cells.map((cell) => element("td", { title: cell }, cell)));
  });
  return element("div", { class: "scroll" }, element("table", { class: "alike" }, heading, ...rows));
}
