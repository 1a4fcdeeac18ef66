// review.csv: RFC 4180, with cells that a spreadsheet would run as a formula made harmless.

const REVIEW_COLUMNS = ["id", "given_label", "suggested_label", "decision", "new_label"];

// Apostrophes before the sign count too, or a name that has one of its own would lose it when it is read back. A number
// with a sign is no formula; the last four signs are the wide ones of Asian keyboards. cells.py has the same.
const FORMULA = /^(?![+-](?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$)'*[=+\-@\t\r\n＝＋－＠]/;

function escapeCell(cell) {
  return FORMULA.test(cell) ? `'${cell}` : cell;
}

function unescapeCell(cell) {
  return cell.startsWith("'") && FORMULA.test(cell) ? cell.slice(1) : cell;
}

function writeCsv(rows) {
  const quote = (cell) => (/[",\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
  return rows.map((row) => row.map((cell) => quote(escapeCell(cell))).join(",") + "\r\n").join("");
}

// Rows of cells; empty lines are left out.
function parseCsv(text) {
  const rows = [];
  let row = [];
  let at = text.startsWith("\ufeff") ? 1 : 0;
  while (at < text.length) {
    let cell = "";
    if (text[at] === '"') {
      for (;;) {
        const end = text.indexOf('"', at + 1);
        if (end < 0) throw new Error(`a quoted cell of row ${rows.length + 1} has no end`);
        cell += text.slice(at + 1, end);
        at = end + 1;
        if (text[at] !== '"') break;
        cell += '"';
      }
      if (at < text.length && !",\r\n".includes(text[at])) {
        throw new Error(`something follows a quoted cell of row ${rows.length + 1}`);
      }
    } else {
      const start = at;
      while (at < text.length && !",\r\n".includes(text[at])) at += 1;
      cell = text.slice(start, at);
    }
    row.push(unescapeCell(cell));
    const comma = text[at] === ",";
    at += text.startsWith("\r\n", at) ? 2 : 1;
    if (comma && at < text.length) continue;
    if (comma) row.push("");
    if (row.length > 1 || row[0] !== "") rows.push(row);
    row = [];
  }
  return rows;
}
