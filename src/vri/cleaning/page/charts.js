// The charts: confusion of labels as a table of shades, pairs with most suspects, histogram of quality.

const HEAT_EDGES = [0.01, 0.03, 0.1, 0.2, 0.5]; // shares of a class; small ones are those of interest
const VALUES_UP_TO = 12; // classes whose map has room for numbers
const MAP_UP_TO = 40; // classes; a larger map can't be read, the list of pairs stands in for it

function heatStep(share) {
  return HEAT_EDGES.filter((edge) => share >= edge).length;
}

// choose(given, suggested) is called when a cell is chosen.
function drawMap(overview, choose) {
  const { classes, transition_matrix: matrix, pair_counts: pairs } = overview;
  if (classes.length > MAP_UP_TO) {
    byId("map-panel").hidden = true;
    byId("pairs-hint").textContent =
      `A map of ${classes.length} classes would be too fine to read. Given → suggested label: choose a pair to see its suspects.`;
    return;
  }
  const table = element("table", { class: classes.length <= VALUES_UP_TO ? "heat" : "heat fine" });
  table.classList.toggle("long", classes.some((name) => name.length > 3));
  table.style.setProperty("--classes", classes.length);
  const heading = element("tr", {}, element("td", { class: "corner" }, "true\u00a0↓ given\u00a0→"));
  for (const name of classes) {
    heading.append(element("th", { scope: "col", title: name }, element("span", {}, name)));
  }
  const body = element("tbody");
  classes.forEach((name, truth) => {
    const row = element("tr", {}, element("th", { scope: "row", title: name }, element("span", {}, name)));
    matrix[truth].forEach((share, given) => {
      const suspects = pairs[given][truth];
      const words =
        `${percent(share, 1)} of ${name} labelled ${classes[given]}` +
        (truth === given ? "" : `: ${count(suspects, "suspect")}`);
      const value = classes.length <= VALUES_UP_TO && share >= 0.005 ? (100 * share).toFixed(0) : "";
      const cell = element("td", { class: `heat-${heatStep(share)}`, title: words });
      if (suspects > 0 && truth !== given) {
        const button = element("button", { type: "button", "aria-label": words }, value);
        button.addEventListener("click", () => choose(given, truth));
        cell.append(button);
      } else {
        cell.append(value);
      }
      row.append(cell);
    });
    body.append(row);
  });
  table.append(element("thead", {}, heading), body);
  byId("map").append(table);

  const edges = HEAT_EDGES.map((edge) => (100 * edge).toFixed(0));
  const ranges = [`under ${edges[0]}`, ...edges.map((edge, i) => (edges[i + 1] ? `${edge}–${edges[i + 1]}` : `${edge} or more`))];
  ranges.forEach((range, step) => {
    byId("legend").append(element("span", {}, element("i", { class: `heat-${step}` }), range));
  });
  byId("legend").append(element("span", {}, "percent"));
}

function drawPairs(overview, choose) {
  const { classes, transition_matrix: matrix, pair_counts: counts } = overview;
  const pairs = [];
  counts.forEach((row, given) =>
    row.forEach((suspects, suggested) => {
      if (suspects > 0 && given !== suggested) pairs.push({ given, suggested, suspects });
    }),
  );
  pairs.sort((a, b) => b.suspects - a.suspects);
  const list = byId("pairs");
  if (pairs.length === 0) list.append(element("li", { class: "hint" }, "No pair of labels stands out."));
  for (const { given, suggested, suspects } of pairs.slice(0, classes.length > MAP_UP_TO ? 40 : 8)) {
    const bar = element("i", { class: "pair-bar" });
    bar.style.width = percent(suspects / pairs[0].suspects).replace("\u202f", "");
    const button = element(
      "button",
      { type: "button", title: `${percent(matrix[suggested][given], 1)} of ${classes[suggested]} are labelled ${classes[given]}` },
      element("span", { class: "pair-name" }, classes[given]),
      element("span", { class: "arrow", "aria-label": "looks like" }, "→"),
      element("span", { class: "pair-name" }, classes[suggested]),
      element("span", { class: "pair-count" }, suspects.toLocaleString("en-GB")),
      bar,
    );
    button.addEventListener("click", () => choose(given, suggested));
    list.append(element("li", {}, button));
  }
}

// Counts span decades (most labels are fine), hence the logarithmic axis.
function drawHistogram(overview, width) {
  const { quality_counts: counts, threshold } = overview;
  const height = Math.round(Math.min(330, Math.max(230, width * 0.8)));
  const [left, right, top, bottom] = [48, 12, 26, 44];
  const plotWidth = width - left - right;
  const plotHeight = height - top - bottom;
  const decades = Math.max(1, Math.ceil(Math.log10(Math.max(...counts, 1))));
  const x = (quality) => left + quality * plotWidth;
  const y = (number) => top + plotHeight * (1 - (number > 0 ? (Math.log10(number) + 0.3) / (decades + 0.3) : 0));

  const picture = drawing("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", class: "histogram" });
  picture.setAttribute(
    "aria-label",
    `Histogram of label quality from 0 to 1, threshold ${threshold.toFixed(2)}. ${byId("histogram-hint").textContent}`,
  );
  for (let decade = 0; decade <= decades; decade += 1) {
    const number = 10 ** decade;
    const name = number >= 1e6 ? `${number / 1e6}M` : number >= 1e3 ? `${number / 1e3}k` : String(number);
    picture.append(
      drawing("line", { class: "grid", x1: left, x2: width - right, y1: y(number), y2: y(number) }),
      drawing("text", { x: left - 8, y: y(number) + 4, "text-anchor": "end" }, name),
    );
  }
  const step = plotWidth / counts.length;
  counts.forEach((number, bin) => {
    const [low, high] = [bin / counts.length, (bin + 1) / counts.length];
    const bar = { x: x(low) + 0.5, y: y(number), width: Math.max(step - 1, 1), height: top + plotHeight - y(number) };
    const shade = (low + high) / 2 < threshold ? "bar suspicious" : "bar";
    const words = `${count(number, "label")} of quality ${low.toFixed(3)} to ${high.toFixed(3)}`;
    picture.append(drawing("rect", { class: shade, ...bar }, drawing("title", {}, words)));
  });
  picture.append(drawing("line", { class: "axis", x1: left, x2: width - right, y1: top + plotHeight, y2: top + plotHeight }));
  for (const quality of [0, 0.25, 0.5, 0.75, 1]) {
    picture.append(drawing("text", { x: x(quality), y: top + plotHeight + 17, "text-anchor": "middle" }, String(quality)));
  }
  const beyondMiddle = threshold > 0.6;
  picture.append(
    drawing("line", { class: "threshold", x1: x(threshold), x2: x(threshold), y1: top - 8, y2: top + plotHeight }),
    drawing(
      "text",
      { class: "strong", x: x(threshold) + (beyondMiddle ? -5 : 5), y: top - 10, "text-anchor": beyondMiddle ? "end" : "start" },
      `threshold ${threshold.toFixed(2)}`,
    ),
    drawing("text", { x: left + plotWidth / 2, y: height - 6, "text-anchor": "middle" }, "label quality (low = suspicious)"),
    drawing(
      "text",
      { transform: `translate(11 ${top + plotHeight / 2}) rotate(-90)`, "text-anchor": "middle" },
      "labels (log scale)",
    ),
  );
  picture.append(drawing("line", { class: "reach", y1: top - 4, y2: top + plotHeight, "data-left": left, "data-width": plotWidth, visibility: "hidden" }));
  byId("histogram").replaceChildren(picture);
}

// A second line in the histogram: up to which quality suspects are on show, if not up to the threshold.
function markReach(quality) {
  const line = document.querySelector(".histogram .reach");
  line.setAttribute("visibility", quality === null ? "hidden" : "visible");
  const x = Number(line.dataset.left) + (quality ?? 0) * Number(line.dataset.width);
  line.setAttribute("x1", x);
  line.setAttribute("x2", x);
}
