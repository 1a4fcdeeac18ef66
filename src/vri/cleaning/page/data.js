// What the page was given: the overview, the suspects, their pictures and their neighbours.

const overview = readBlock("overview");
const suspects = readSuspects();
const named = Math.min(overview.issues, suspects.length); // those that follow were not called wrong

function readSuspects() {
  const rows = [];
  for (let number = 0, block; (block = readBlock(`suspects-${number}`)); number += 1) rows.push(...block);
  return rows.map(([id, given, suggested, quality, confidence, outlier, text, cells, others, near]) => ({
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
    others: inPairs(others).map(([label, share]) => ({ label: overview.classes[label], share })),
    near: near.map((label) => overview.classes[label]),
    get fields() {
      return fieldsFrom(cells);
    },
    // What a search looks through.
    get words() {
      const all = [id, text ?? "", ...inPairs(cells).map(([, value]) => value)].join("\n").toLowerCase();
      Object.defineProperty(this, "words", { value: all });
      return all;
    },
  }));
}

function inPairs(flat) {
  return Array.from({ length: flat.length / 2 }, (_, i) => [flat[2 * i], flat[2 * i + 1]]);
}

function fieldsFrom(cells) {
  return inPairs(cells).map(([column, value]) => [overview.columns[column], value]);
}

// Pictures are most of the file: a block of them is decoded when it is needed, and a few blocks are kept.
function keeper(name) {
  const kept = new Map();
  return (suspect) => {
    const number = Math.floor(suspect / overview.batch);
    if (!kept.has(number)) {
      kept.set(number, readBlock(`${name}-${number}`));
      if (kept.size > 12) kept.delete(kept.keys().next().value);
    }
    return kept.get(number);
  };
}

const pictureBlock = keeper("pictures");
const neighbourBlock = keeper("neighbours");

function pictureFor(suspect) {
  return pictureBlock(suspect)?.[suspect % overview.batch] ?? null;
}

function neighboursOf(suspect) {
  const block = neighbourBlock(suspect);
  const places = block?.of[suspect % overview.batch] ?? [];
  return places.map((place, i) => {
    const [id, text, cells, picture] = block.seen[place];
    return { id, text, fields: fieldsFrom(cells), picture, label: suspects[suspect].near[i] };
  });
}
