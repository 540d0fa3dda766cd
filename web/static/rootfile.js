// Browses an exported ROOT file with JSROOT: columns of its trees, drawn and as numbers.

const BINS = 60, LISTED = 25, UNKNOWN_BOOL = 255;
/** The column that is shown first. */
const FIRST = "eff_job";
/** The columns by which good timed measurements are told from others. */
const JUDGED = ["kind", "failure_class", "plausible"];
/** What is chosen, of which the address has what is not usual. */
const CHOICES = ["tree", "column", "against", "entries"];
const page = document.getElementById("rootfile");
const part = (name) => page.querySelector(`[data-part="${name}"]`);
const say = (text) => { part("status").textContent = text; };

let jsroot = null;
let tree = null;
let columns = [];
/** Counts what was asked to be shown: what is read later than something asked after it is dropped. */
let turns = 0;

/** Name and type of a tree's branches. */
function columnsOf(found) {
  return found.fBranches.arr.map((branch) => {
    const leaf = branch.fLeaves?.arr?.[0];
    const made = branch.fClassName || { TLeafD: "double", TLeafF: "float", TLeafL: "long", TLeafI: "int", TLeafB: "bool", TLeafO: "bool", TLeafC: "text" }[leaf?._typename] || "";
    return { name: branch.fName, type: made.replace("string", "text") };
  });
}

/** The values of some columns, an array for each. */
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

/** The entries that are shown, by their numbers, and of each column its values there. */
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

/** Whether the tree tells which of its entries are good. */
function judges() {
  return JUDGED.every((name) => columns.some((column) => column.name === name));
}

/** Put what is chosen into the address, so that it can be kept and sent around. */
function remember() {
  const asked = new URLSearchParams(location.search);
  for (const name of CHOICES) {
    const value = part(name).value;
    if (value) asked.set(name, value); else asked.delete(name);
  }
  history.replaceState(null, "", `?${asked}`);
}

/** Choose what the address asks for, where there is such a thing. */
function recall(name, usual) {
  const box = part(name), asked = new URLSearchParams(location.search).get(name);
  const known = (value) => [...box.options].some((option) => option.value === value);
  box.value = asked !== null && known(asked) ? asked : usual;
}

/** JSROOT makes one character of each byte. */
function decoded(text) {
  return new TextDecoder().decode(Uint8Array.from(text, (character) => character.charCodeAt(0)));
}

function typeOf(name) {
  return columns.find((column) => column.name === name)?.type ?? "";
}

/** A number; NaN for what is not known. */
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

/** A table with two columns of text. */
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
  listing(`The first ${first.length} of ${rows.length} entries`, ["entry", ...names], first);
  const entries = judges() && part("entries").value === "good" ? `${name}: ${rows.length} good timed measurements of ${whole} entries` : `${name}: ${rows.length} entries`;
  if (names.some(isText)) {
    drawing.hidden = true;
    const counts = new Map();
    for (const [row, value] of found[0].entries()) {
      const key = names.map((one, place) => told(found[place][row], one)).join(" · ");
      counts.set(key, (counts.get(key) ?? 0) + 1);
    }
    const sorted = [...counts].sort((a, b) => b[1] - a[1]);
    listing(`How often each occurs${sorted.length > LISTED ? `; the ${LISTED} most frequent of ${sorted.length}` : ""}`, [names.join(" · "), "entries"], sorted.slice(0, LISTED).map(([key, count]) => [key, String(count)]));
    say(`${entries}, ${sorted.length} different values.`);
    return;
  }
  const flat = (place) => found[place].flatMap((value) => (typeof value === "object" && value !== null ? Array.from(value, Number) : [known(value, typeOf(names[place]))]));
  const lists = found.some((values) => values.some((value) => typeof value === "object"));
  let drawn = names.map((_, place) => flat(place));
  if (against && lists) {
    drawing.hidden = true;
    say(`${name} or ${against} holds lists, which cannot be drawn against each other.`);
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
  say(`${entries}${left ? `, ${left} not known and left out` : ""}.`);
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
  // What is looked for most is shown at once.
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
      say(`This cannot be shown: ${error.message ?? error}`);
    }
  };
}

async function open() {
  say("The file is being made; this can take some seconds …");
  const answer = await fetch(page.dataset.file, { headers: { Accept: "application/json" }, method: "HEAD" });
  if (!answer.ok) {
    const told = await fetch(page.dataset.file, { headers: { Accept: "application/json" } });
    say(`There is no file: ${(await told.json()).error}`);
    return;
  }
  jsroot = await import(page.dataset.jsroot);
  jsroot.settings.UseStamp = false;   // an address of ours has one content
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
