// What was decided, kept in the browser at every step. A decision is {kind, label}: keep, accept, drop or other.

const DECISION_KINDS = ["keep", "accept", "drop", "other"];

class Decisions {
  constructor(key) {
    this.key = `vri-review:${key}`;
    this.stored = true; // false once the browser has refused to keep them
    this.history = []; // steps back: lists of [suspect, decision before]
    this.load();
  }

  load() {
    this.map = new Map(); // suspect -> decision, in the order they were taken
    try {
      // Chromium, on a busy machine, now and then shows a reloaded page an empty localStorage; the tab's own has a copy.
      const kept = localStorage.getItem(this.key) ?? sessionStorage.getItem(this.key) ?? "[]";
      for (const [suspect, kind, label] of JSON.parse(kept)) {
        this.map.set(suspect, { kind, label });
      }
      localStorage.setItem(`${this.key}:probe`, "");
      localStorage.removeItem(`${this.key}:probe`);
    } catch {
      this.stored = false;
    }
  }

  save() {
    const rows = JSON.stringify(Array.from(this.map, ([suspect, { kind, label }]) => [suspect, kind, label]));
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
    this.history.push(changes.map(([suspect]) => [suspect, this.map.get(suspect)]));
    this.put(changes);
  }

  // The suspects that changed. After a reload the steps are gone, so the latest decision is taken back.
  undo() {
    const latest = Array.from(this.map.keys()).at(-1);
    const step = this.history.pop() ?? (latest === undefined ? [] : [[latest, undefined]]);
    this.put(step);
    return step.map(([suspect]) => suspect);
  }

  put(changes) {
    for (const [suspect, decision] of changes) {
      this.map.delete(suspect); // so that the latest stands last
      if (decision) this.map.set(suspect, decision);
    }
    this.save();
  }
}
