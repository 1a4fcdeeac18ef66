// The list of cards, in groups if wanted, of which only those near the window exist.

const GAP = 14; // px between cards
const GRID_GAP = 8;
const HEAD = 46; // px of the head of a group
const SPARE = 500; // px drawn above and below the window, so that scrolling shows no holes

// Cards of fixed size in as many columns as fit; `build(suspect)` makes one, `buildHead(group)` the head of a group.
class CardList {
  constructor(box, build, buildHead) {
    this.box = box;
    this.build = build;
    this.buildHead = buildHead;
    this.cards = new Map(); // suspect -> element, for those drawn
    this.heads = new Map(); // group -> element, likewise
    this.groups = [];
    this.shown = [];
    this.places = new Map(); // suspect -> place in shown
    this.rows = [];
    this.current = -1;
  }

  // groups: [{suspects, head}]; without a head nothing stands above its cards.
  show(groups) {
    this.groups = groups;
    this.shown = groups.flatMap(({ suspects }) => suspects);
    this.places = new Map(this.shown.map((suspect, place) => [suspect, place]));
    for (const head of this.heads.values()) head.remove();
    this.heads.clear();
    this.measure();
  }

  // Throw away what is drawn: in another view cards have another size, and other contents are cut.
  clear() {
    for (const card of this.cards.values()) card.remove();
    this.cards.clear();
  }

  measure() {
    const style = getComputedStyle(this.box);
    const [narrowest, height] = ["--card-width", "--card-height"].map((name) => parseFloat(style.getPropertyValue(name)));
    this.gap = this.box.dataset.view === "grid" ? GRID_GAP : GAP;
    this.columns = Math.max(1, Math.floor((this.box.clientWidth + this.gap) / (narrowest + this.gap)));
    this.width = (this.box.clientWidth - this.gap * (this.columns - 1)) / this.columns;
    this.rows = []; // {top, height} with a group or with suspects
    this.rowOf = new Map();
    let top = 0;
    for (const group of this.groups) {
      if (group.head) {
        this.rows.push({ top, height: HEAD, group });
        top += HEAD;
      }
      for (let first = 0; first < group.suspects.length; first += this.columns) {
        const suspects = group.suspects.slice(first, first + this.columns);
        for (const suspect of suspects) this.rowOf.set(suspect, this.rows.length);
        this.rows.push({ top, height, suspects });
        top += height + this.gap;
      }
    }
    this.box.style.height = `${top}px`;
    this.draw();
  }

  draw() {
    const offset = -this.box.getBoundingClientRect().top;
    const first = this.rows.findLastIndex(({ top }) => top <= offset - SPARE);
    const after = this.rows.findIndex(({ top }) => top > offset + window.innerHeight + SPARE);
    const rows = this.rows.slice(Math.max(0, first), after < 0 ? this.rows.length : after);
    const wanted = new Set(rows.flatMap(({ group, suspects }) => suspects ?? [group]));
    for (const drawn of [this.cards, this.heads]) {
      for (const [key, made] of drawn) {
        if (wanted.has(key)) continue;
        made.remove();
        drawn.delete(key);
      }
    }
    const made = [];
    let position = 0;
    const put = (part, top, left, width) => {
      part.style.cssText = `top: ${top}px; left: ${left}px; width: ${width}px`;
      if (this.box.children[position] !== part) this.box.insertBefore(part, this.box.children[position] ?? null);
      position += 1;
    };
    for (const { top, group, suspects } of rows) {
      if (group) {
        if (!this.heads.has(group)) this.heads.set(group, this.buildHead(group));
        put(this.heads.get(group), top, 0, this.box.clientWidth);
      }
      suspects?.forEach((suspect, column) => {
        let card = this.cards.get(suspect);
        if (!card) {
          card = this.build(suspect);
          card.dataset.suspect = suspect;
          this.cards.set(suspect, card);
          made.push(card);
        }
        put(card, top, column * (this.width + this.gap), this.width);
        card.classList.toggle("current", suspect === this.current);
      });
    }
    // Last, when all stand in their places: the browser lays them out once for all of these.
    const contents = made.map((card) => card.querySelector(".content"));
    const cut = contents.map(({ firstChild }) => firstChild.scrollHeight > firstChild.clientHeight + 1);
    contents.forEach((content, number) => content.classList.toggle("cut", cut[number]));
  }

  refreshHeads() {
    for (const [group, head] of this.heads) {
      const fresh = this.buildHead(group);
      fresh.style.cssText = head.style.cssText;
      head.replaceWith(fresh);
      this.heads.set(group, fresh);
    }
  }

  // The suspect a row further down, or up; itself at the end.
  beside(suspect, by) {
    const own = this.rowOf.get(suspect);
    const column = this.rows[own].suspects.indexOf(suspect);
    for (let row = own + by; this.rows[row]; row += by) {
      const { suspects } = this.rows[row];
      if (suspects) return suspects[Math.min(column, suspects.length - 1)];
    }
    return suspect;
  }

  // Where the row of a suspect lies in the window.
  span(suspect) {
    const { top, height } = this.rows[this.rowOf.get(suspect)];
    const start = this.box.getBoundingClientRect().top + top;
    return [start, start + height];
  }

  isVisible(suspect, ceiling, floor = window.innerHeight) {
    if (!this.places.has(suspect)) return false;
    const [top, bottom] = this.span(suspect);
    return top >= ceiling - 1 && bottom <= floor + 1;
  }

  // Make a suspect the current one, in sight between `ceiling` and `floor` px and with the focus.
  goTo(suspect, ceiling, floor) {
    this.current = suspect;
    if (!this.isVisible(suspect, ceiling, floor)) {
      const [top, bottom] = this.span(suspect);
      const space = Math.max(0, floor - ceiling - (bottom - top));
      window.scrollBy({ top: top - ceiling - space / 2, behavior: "instant" });
    }
    this.draw();
    this.cards.get(suspect)?.focus({ preventScroll: true });
  }
}
