// Browse an exported ROOT file with JSROOT: columns of its trees as plots and tables.

const BINS = 60, LISTED = 25, UNKNOWN_BOOL = 255;
/** The column shown first. */
const FIRST = "eff_job";
/** Columns that identify good timed measurements. */
const JUDGED = ["kind", "failure_class", "plausible"];
/** Selected values; those that differ from the defaults are in the URL. */
const CHOICES = ["tree", "column", "against", "entries"];
const page = document.getElementById("rootfile");
const part = (name) => page.querySelector(`[data-part="${name}"]`);
const say = (text) => { part("status").textContent = text; };

let jsroot = null;
let tree = null;
let columns = [];
/** Counts selections; results of outdated ones are dropped. */
let turns = 0;

/** Name and type of a tree's branches. */
function columnsOf(found) {
  return found.fBranches.arr.map((branch) => {
    const leaf = branch.fLeaves?.arr?.[0];
    const made = branch.fClassName || { TLeafD: "double", TLeafF: "float", TLeafL: "long", TLeafI: "int", TLeafB: "bool", TLeafO: "bool", TLeafC: "text" }[leaf?._typename] || "";
    return { name: branch.fName, type: made.replace("string", "text") };
  });
}

/** The values of columns, one array each. */
async function read(names) {
  const found = names.map(() => []);
  const selector = new jsroot.TSelector();
  names.forEach((name, place) => selector.addBranch(name, `v${place}`));
  selector.Process = function () {
    names.forEach((_, place) => found[place].push(this.tgtobj[`v${place}`]));
  };
  await jsroot.treeProcess(tree, selector);
  return found;
}

/** Numbers of the shown entries, and the values of each column. */
async function readChosen(names) {
  if (!judges() || part("entries").value !== "good") {
    const found = await read(names);
    return { found, rows: found[0].map((_, row) => row), all: found[0].length };
  }
  const wanted = [...new Set([...names, ...JUDGED])];
  const whole = await read(wanted);
  const [kind, failure, plausible] = JUDGED.map((name) => whole[wanted.indexOf(name)]);
  const good = (row) => decoded(kind[row]) === "timed" && !failure[row].length && Number(plausible[row]) === 1;
  const rows = kind.map((_, row) => row).filter(good);
  return { found: names.map((_, place) => rows.map((row) => whole[place][row])), rows, all: kind.length };
}

/** Whether the tree has the columns that identify good entries. */
function judges() {
  return JUDGED.every((name) => columns.some((column) => column.name === name));
}

/** Put the selection into the URL. */
function remember() {
  const asked = new URLSearchParams(location.search);
  for (const name of CHOICES) {
    const value = part(name).value;
    if (value) asked.set(name, value); else asked.delete(name);
  }
  history.replaceState(null, "", `?${asked}`);
}

/** Restore the selection from the URL, as far as possible. */
function recall(name, usual) {
  const box = part(name), asked = new URLSearchParams(location.search).get(name);
  const known = (value) => [...box.options].some((option) => option.value === value);
  box.value = asked !== null && known(asked) ? asked : usual;
}

/** Decode UTF-8: JSROOT returns one character per byte. */
function decoded(text) {
  return new TextDecoder().decode(Uint8Array.from(text, (character) => character.charCodeAt(0)));
}

function typeOf(name) {
  return columns.find((column) => column.name === name)?.type ?? "";
}

/** Convert to a number; NaN if missing. */
function known(value, type) {
  const number = Number(value);
  if (type === "bool" && number === UNKNOWN_BOOL) return NaN;
  return number < -9e18 ? NaN : number;
}

function isText(name) {
  return typeOf(name) === "text";
}

function histogram(name, values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  const room = (high - low) * 0.02 || Math.abs(high) * 0.02 || 0.5;
  const made = jsroot.createHistogram("TH1D", BINS);
  made.fName = name;
  made.fTitle = name;
  Object.assign(made.fXaxis, { fXmin: low - room, fXmax: high + room, fTitle: name });
  made.fYaxis.fTitle = "entries";
  const width = (high - low + 2 * room) / BINS;
  for (const value of values) {
    made.fArray[1 + Math.min(BINS - 1, Math.floor((value - low + room) / width))] += 1;
    made.fTsumw += 1; made.fTsumw2 += 1; made.fTsumwx += value; made.fTsumwx2 += value * value;
  }
  made.fEntries = values.length;
  return made;
}

/** Add a table. */
function listing(caption, heads, rows) {
  const table = document.createElement("table");
  table.className = "listing";
  table.createCaption().textContent = caption;
  const head = table.createTHead().insertRow();
  for (const text of heads) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = text;
    head.append(cell);
  }
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((text, place) => {
      const cell = document.createElement(place ? "td" : "th");
      if (!place) cell.scope = "row";
      cell.className = "long";
      cell.textContent = text;
      line.append(cell);
    });
  }
  part("values").replaceChildren(table);
}

function told(value, name) {
  if (value === null || value === undefined || value === "") return "–";
  if (isText(name)) return decoded(value);
  if (typeof value === "object") return `[${Array.from(value).join(", ")}]`;
  return Number.isNaN(known(value, typeOf(name))) ? "–" : String(value);
}

async function show() {
  const name = part("column").value, against = part("against").value;
  if (!name) return;
  const turn = ++turns;
  say("Reading …");
  const drawing = part("drawing");
  const names = against ? [name, against] : [name];
  remember();
  const { found, rows, all: whole } = await readChosen(names);
  if (turn !== turns) return;
  jsroot.cleanup(drawing);
  const first = rows.slice(0, LISTED).map((row, at) => [String(row), ...names.map((one, place) => told(found[place][at], one))]);
  listing(`First ${first.length} of ${rows.length} entries`, ["entry", ...names], first);
  const entries = judges() && part("entries").value === "good" ? `${name}: ${rows.length} good timed measurements of ${whole} entries` : `${name}: ${rows.length} entries`;
  if (names.some(isText)) {
    drawing.hidden = true;
    const counts = new Map();
    for (const [row, value] of found[0].entries()) {
      const key = names.map((one, place) => told(found[place][row], one)).join(" · ");
      counts.set(key, (counts.get(key) ?? 0) + 1);
    }
    const sorted = [...counts].sort((a, b) => b[1] - a[1]);
    listing(`Frequencies${sorted.length > LISTED ? `; the ${LISTED} most frequent of ${sorted.length}` : ""}`, [names.join(" · "), "entries"], sorted.slice(0, LISTED).map(([key, count]) => [key, String(count)]));
    say(`${entries}, ${sorted.length} different values.`);
    return;
  }
  const flat = (place) => found[place].flatMap((value) => (typeof value === "object" && value !== null ? Array.from(value, Number) : [known(value, typeOf(names[place]))]));
  const lists = found.some((values) => values.some((value) => typeof value === "object"));
  let drawn = names.map((_, place) => flat(place));
  if (against && lists) {
    drawing.hidden = true;
    say(`${name} or ${against} holds lists, which cannot be plotted against each other.`);
    return;
  }
  const all = drawn[0].length;
  const good = drawn[0].map((_, row) => drawn.every((values) => Number.isFinite(values[row])));
  drawn = drawn.map((values) => values.filter((_, row) => good[row]));
  const left = all - drawn[0].length;
  drawing.hidden = !drawn[0].length;
  if (drawn[0].length && against) {
    const graph = jsroot.createTGraph(drawn[0].length, drawn[1], drawn[0]);
    Object.assign(graph, { fTitle: `${name} against ${against};${against};${name}`, fMarkerStyle: 20, fMarkerSize: 0.6, fMarkerColor: 4 });
    await jsroot.TGraphPainter.draw(drawing, graph, "AP");
  } else if (drawn[0].length) {
    await jsroot.TH1Painter.draw(drawing, histogram(name, drawn[0]), "hist");
  }
  if (turn !== turns) return;
  drawing.setAttribute("aria-label", against ? `${name} against ${against}` : `Distribution of ${name}`);
  say(`${entries}${left ? `, ${left} missing` : ""}.`);
}

function list() {
  const wanted = part("filter").value.trim().toLowerCase();
  const options = columns.filter((column) => column.name.toLowerCase().includes(wanted)).map((column) => new Option(`${column.name}  (${column.type})`, column.name));
  part("column").replaceChildren(...options);
}

async function choose(file, name) {
  turns += 1;
  const found = await file.readObject(name);
  if (part("tree").value !== name) return;
  tree = found;
  columns = columnsOf(tree);
  part("against").replaceChildren(new Option("its distribution", ""), ...columns.map((column) => new Option(`against ${column.name}`, column.name)));
  list();
  part("drawing").hidden = true;
  part("values").replaceChildren();
  part("entries").disabled = !judges();
  // Show the most common column first.
  recall("column", columns.some((column) => column.name === FIRST) ? FIRST : "");
  recall("against", "");
  say(`${name}: ${tree.fEntries} entries of ${columns.length} columns. Choose a column.`);
  part("tools").hidden = false;
  await show();
}

function careful(action) {
  return async (...what) => {
    try {
      await action(...what);
    } catch (error) {
      say(`Cannot be shown: ${error.message ?? error}`);
    }
  };
}

async function open() {
  say("The file is being made; this can take some seconds …");
  const answer = await fetch(page.dataset.file, { headers: { Accept: "application/json" }, method: "HEAD" });
  if (!answer.ok) {
    const told = await fetch(page.dataset.file, { headers: { Accept: "application/json" } });
    say(`No file: ${(await told.json()).error}`);
    return;
  }
  jsroot = await import(page.dataset.jsroot);
  jsroot.settings.UseStamp = false;   // URLs are versioned by content
  const file = await jsroot.openFile(page.dataset.file);
  if (!file) throw new Error("the file cannot be read");
  const names = file.fKeys.filter((key) => key.fClassName === "TTree").map((key) => key.fName);
  part("tree").replaceChildren(...names.map((name) => new Option(name, name)));
  part("tree").addEventListener("change", careful(() => choose(file, part("tree").value)));
  part("filter").addEventListener("input", list);
  part("column").addEventListener("change", careful(show));
  part("against").addEventListener("change", careful(show));
  part("entries").addEventListener("change", careful(show));
  recall("entries", "good");
  const name = names.includes("results") ? "results" : names[0];
  recall("tree", name);
  await choose(file, part("tree").value);
}

if (page) careful(open)();
