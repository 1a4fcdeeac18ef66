// What was decided, kept in the browser at every step. A decision is {kind, label, step}: keep, accept, drop or other, the
// label of other, and a number that the decisions share which were taken at once.

const DECISION_KINDS = ["keep", "accept", "drop", "other"];

class Decisions {
  constructor(key) {
    this.key = `vri-review:${key}`;
    this.stored = true; // false once the browser has refused to keep them
    this.history = []; // steps back: lists of [suspect, decision before]
    this.step = 0;
    this.load();
  }

  load() {
    this.map = new Map(); // suspect -> decision, in the order they were taken
    try {
      // Chromium, on a busy machine, now and then shows a reloaded page an empty localStorage; the tab's own has a copy.
      const kept = localStorage.getItem(this.key) ?? sessionStorage.getItem(this.key) ?? "[]";
      for (const [suspect, kind, label, step = -suspect] of JSON.parse(kept)) {
        this.map.set(suspect, { kind, label, step });
        this.step = Math.max(this.step, step);
      }
      localStorage.setItem(`${this.key}:probe`, "");
      localStorage.removeItem(`${this.key}:probe`);
    } catch {
      this.stored = false;
    }
  }

  save() {
    const rows = JSON.stringify(Array.from(this.map, ([suspect, { kind, label, step }]) => [suspect, kind, label, step]));
    try {
      localStorage.setItem(this.key, rows);
      this.stored = true;
    } catch {
      this.stored = false;
    }
    try {
      sessionStorage.setItem(this.key, rows);
    } catch {
      // the copy is one more chance, nothing to tell of
    }
  }

  get size() {
    return this.map.size;
  }

  get(suspect) {
    return this.map.get(suspect);
  }

  // changes: [suspect, decision] pairs, undefined for none; one step for undo.
  change(changes) {
    this.step += 1;
    this.history.push(changes.map(([suspect]) => [suspect, this.map.get(suspect)]));
    this.put(changes.map(([suspect, decision]) => [suspect, decision && { ...decision, step: this.step }]));
  }

  // The suspects that changed. After a reload what was before is gone, so the latest decisions are taken back.
  undo() {
    const step = this.history.pop() ?? this.latest().map((suspect) => [suspect, undefined]);
    this.put(step);
    return step.map(([suspect]) => suspect);
  }

  latest() {
    const last = Array.from(this.map.values()).at(-1);
    return Array.from(this.map.keys()).filter((suspect) => this.map.get(suspect).step === last.step);
  }

  put(changes) {
    for (const [suspect, decision] of changes) {
      this.map.delete(suspect); // so that the latest stands last
      if (decision) this.map.set(suspect, decision);
    }
    this.save();
  }
}
