// Draw the charts of a page with Vega-Lite, once they are visible, from JSON beside them.

/** Colors of a chart's texts and grid, which are replaced by the page's: on paper they change with it. */
const COLORS = { "#1d2329": "var(--ink)", "#d9dee3": "var(--line)" };
/** Colors of cells and of their numbers, which Vega mixes: they are read when the chart is drawn. */
const CELL_COLORS = { "#1d2328": "--ink", "#d9dee2": "--line" };
const SVG = "http://www.w3.org/2000/svg";
/** Narrower panels lie below each other; space between panels, and for the axis beside them. */
const PANEL_WIDTH = 300, GAP = 36, AXIS_WIDTH = 64;
/** Least width of a column of a heat map, of the labels of its rows, and of the legend above it. */
const COLUMN_WIDTH = 14, ROW_LABEL_WIDTH = 220, LEGEND_WIDTH = 170;
/** Outlines of markers in a box from -1 to 1. */
const MARKERS = {
  circle: "M-1,0a1,1 0 1,0 2,0a1,1 0 1,0 -2,0", square: "M-.9-.9h1.8v1.8h-1.8z", "triangle-up": "M0-1L1,.9h-2z",
  "triangle-down": "M0,1L1-.9h-2z", diamond: "M0-1L1,0L0,1L-1,0z",
  cross: "M-.35-1h.7v.65h.65v.7h-.65v.65h-.7v-.65h-.65v-.7h.65z", line: "M-1.6-.15h3.2v.3h-3.2z",
};

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function element(name, parent, attributes = {}, text = "") {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  parent.append(made);
  return made;
}

/** Whether the axes of a figure's chart can be zoomed; those of verdicts are fixed. */
function canZoom(figure) {
  return /"bind": ?"scales"/.test(figure.querySelector("script[type='application/json']").textContent);
}

/** Names of hidden series, common to all charts of the page, and the charts drawn so far. */
const hiddenNames = new Set(), charts = [];
/** Marks that can be reached by keys; a line is reached at its points. */
const REACHED = ["symbol", "rect", "rule"];

/** List the marks of a scene graph that have a tooltip. */
function* listMarks(mark) {
  for (const item of mark.items) {
    if (mark.marktype === "group") for (const inner of item.items) yield* listMarks(inner);
    else if (REACHED.includes(mark.marktype) && item.tooltip && item._svg) yield item;
  }
}

/** Write a tooltip as text. */
function describe({ tooltip }) {
  if (typeof tooltip !== "object") return String(tooltip);
  return Object.entries(tooltip).map(([name, value]) => `${name} ${value}`.trim()).join(", ");
}

async function restore(view, state) {
  for (const [name, value] of Object.entries(state)) if (value !== undefined && value !== null) view.signal(name, value);
  // The angle of labels depends on the width that they left for the plot.
  await view.resize().runAsync();
}

/** A drawn chart with its legend and buttons. */
class Chart {
  constructor(figure) {
    this.figure = figure;
    this.canvas = figure.querySelector(".canvas");
    this.text = figure.querySelector("script[type='application/json']").textContent;
    this.meta = JSON.parse(this.text).usermeta ?? {};
    this.names = (this.meta.series ?? []).map((one) => one.name);
    this.width = 0;
  }

  /** The specification for a width, with the page's colors or with those of files. */
  specification(width, { own = false } = {}) {
    let text = this.text;
    const colors = Object.entries(COLORS).concat(Object.entries(CELL_COLORS).map(([from, name]) => [from, color(name)]));
    if (!own) for (const [from, to] of colors) text = text.replaceAll(`"${from}"`, JSON.stringify(to));
    const spec = JSON.parse(text);
    if (!own) spec.config.background = null;
    spec.config.font = own ? spec.config.font : getComputedStyle(document.body).fontFamily;
    spec.config.axis.labelLimit = Math.max(this.meta.places ? ROW_LABEL_WIDTH : 90, Math.min(320, 0.33 * width));
    if (spec.spec) {
      const labels = Math.min(this.meta.label_width ?? AXIS_WIDTH, Math.max(AXIS_WIDTH, spec.config.axis.labelLimit));
      spec.columns = Math.max(1, Math.min(this.meta.panels, Math.floor((width - labels) / PANEL_WIDTH)));
      spec.spec.width = Math.floor((width - labels) / spec.columns - GAP);
      spec.config.header.labelLimit = spec.spec.width;
    } else {
      // Narrower columns of a heat map would have no room for labels: it scrolls instead.
      const least = Math.max(LEGEND_WIDTH, (this.meta.column_width ?? COLUMN_WIDTH) * this.meta.places);
      spec.width = Math.max(width, own || !this.meta.places ? 0 : least + spec.config.axis.labelLimit);
      spec.autosize = { type: "fit-x", contains: "padding" };
    }
    return spec;
  }

  async embed(place, spec, own) {
    const { embed, expressionInterpreter } = await import(new URL(this.canvas.dataset.library, document.baseURI));
    return embed(place, spec, {
      mode: "vega-lite", actions: false, renderer: "svg", ast: true, expr: expressionInterpreter, defaultStyle: false,
      tooltip: { disableDefaultStyle: true },
      // The page has title and legend of its own.
      patch: (vega) => (own ? vega : { ...vega, title: undefined, legends: vega.legends?.filter((one) => one.orient !== "bottom") }),
    });
  }

  async draw() {
    const width = this.canvas.clientWidth;
    // On paper the drawing is scaled: it would still be empty when the sheet is printed.
    if (!width || Math.abs(width - this.width) < 8 || matchMedia("print").matches) return;
    this.width = width;
    const state = this.state();
    this.result?.finalize();
    this.result = await this.embed(this.canvas, this.specification(this.width), false);
    this.view = this.result.view;
    await restore(this.view, state);
    this.reached = null;
    // The canvas has a label for all of it.
    this.canvas.querySelector("svg").setAttribute("aria-hidden", "true");
    this.figure.classList.add("ready");
    this.follow();
  }

  /** Signals that hold the zoomed range of each axis, by the name of its scale. */
  ranges() {
    const signals = (this.result?.vgSpec.signals ?? []).map((one) => one.name);
    const found = {};
    for (const { name, domainRaw } of this.result?.vgSpec.scales ?? []) {
      const field = domainRaw?.signal?.match(/zoom\["(\w+)"\]/)?.[1];
      if (field) found[name] = signals.find((one) => one === `zoom_${field}`) ?? signals.find((one) => one.startsWith(`zoom_${field}_`));
    }
    return found;
  }

  /** Zoom and hidden series, to be kept when the chart is drawn again. */
  state() {
    const ranges = Object.values(this.ranges()).map((name) => [name, this.view?.signal(name)]);
    return { ...Object.fromEntries(ranges), hidden: this.hiddenNumbers() };
  }

  hiddenNumbers() {
    return this.names.flatMap((name, number) => (hiddenNames.has(name) ? [number] : []));
  }

  /** Open the page of a mark when it is clicked, but not when the chart is dragged. */
  follow() {
    let start = [0, 0];
    const rows = JSON.parse(this.text).datasets?.marks ?? [];
    if (!this.meta.links && !rows.some((row) => row.u)) return;
    this.canvas.onpointerdown = (event) => { start = [event.clientX, event.clientY]; };
    this.view.addEventListener("click", (event, item) => {
      const still = Math.hypot(event.clientX - start[0], event.clientY - start[1]) < 4;
      if (still) this.open(item?.datum);
    });
    this.canvas.classList.add("linked");
  }

  /** Open the page of a mark, if it has one. */
  open(mark) {
    const address = mark?.u ?? (mark?.p === undefined || !this.meta.links ? "" : this.address(mark));
    if (address) location.assign(address);
  }

  /** Series of marks by panel and series, in the order of their positions; each text once. */
  listSeries() {
    const series = new Map(), texts = new Set();
    for (const item of listMarks(this.view.scenegraph().root)) {
      const { p = 0, s = -1 } = item.datum, key = `${p}/${s}`, text = `${key}/${describe(item)}`;
      if (texts.has(text)) continue;
      texts.add(text);
      if (!series.has(key)) series.set(key, []);
      series.get(key).push(item);
    }
    const place = (item) => { const box = item._svg.getBoundingClientRect(); return box.left + box.width / 2; };
    for (const items of series.values()) items.sort((a, b) => place(a) - place(b));
    return [...series.values()].map((items) => items.map((item) => ({ item, x: place(item) })));
  }

  /** Find the next mark in the direction of a key: left and right inside a series, up and down between them. */
  findMark(key) {
    const series = this.listSeries();
    const text = this.reached && describe(this.reached);
    const row = series.findIndex((some) => some.some(({ item }) => item.datum.s === this.reached?.datum.s && describe(item) === text));
    if (row < 0) return series[0]?.[0]?.item;
    const own = series[row], place = own.findIndex(({ item }) => describe(item) === text);
    const sideways = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: own.length - 1 }[key];
    if (sideways !== undefined) return own[sideways]?.item;
    const other = series[row + (key === "ArrowDown" ? 1 : -1)];
    const distance = ({ x }) => Math.abs(x - own[place].x);
    return other?.reduce((a, b) => (distance(b) < distance(a) ? b : a)).item;
  }

  /** Reach the marks by arrow keys, one at a time, and write the text of each below the chart. */
  addKeys() {
    const text = element("p", this.figure, { class: "quiet reading", "aria-live": "polite" });
    this.canvas.after(text);
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-roledescription", "chart; arrow keys move between points, Enter opens one");
    this.canvas.addEventListener("keydown", (event) => {
      const moves = event.key.startsWith("Arrow") || event.key === "Home" || event.key === "End";
      if (!this.view || event.ctrlKey || event.altKey || event.metaKey) return;
      if (event.key === "Enter") this.open(this.reached?.datum);
      if (!moves) return;
      event.preventDefault();
      const item = this.findMark(event.key);
      if (!item) return;
      this.leave();
      this.reached = item;
      item._svg.classList.add("reached");
      text.textContent = describe(item);
    });
    this.canvas.addEventListener("blur", () => this.leave());
  }

  /** Stop to stress the reached mark. */
  leave() {
    this.canvas.querySelector(".reached")?.classList.remove("reached");
  }

  address(mark) {
    const { base, panels, places, series } = this.meta.links;
    return [base, panels[mark.p], places[mark.x], series[mark.s]].filter(Boolean).join("&");
  }

  set(name, value) {
    this.view?.signal(name, value).runAsync();
  }

  /** List the series as buttons: a click hides a series or shows it alone, pointing at it highlights it. */
  addLegend() {
    const names = this.meta.series ?? [];
    if (names.length < 2 && !names[0]?.name) return;
    const longest = Math.max(...names.filter((one) => !one.is_quiet).map((one) => one.name.length));
    const list = element("ul", this.figure, { class: longest > 24 ? "series long" : "series", "aria-label": this.meta.legend ?? "Series" });
    this.canvas.after(list);
    // Quiet series are those without a color of their own.
    const named = names.flatMap((one, number) => (one.is_quiet ? [] : [number]));
    this.entries = new Map(named.map((number) => {
      const one = names[number];
      const entry = element("button", element("li", list), {
        type: "button", "aria-pressed": "true", title: "Click to show this series alone, with Ctrl or Shift to hide it",
      });
      const icon = document.createElementNS(SVG, "svg");
      icon.setAttribute("viewBox", "-1.7 -1.2 3.4 2.4");
      icon.setAttribute("aria-hidden", "true");
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("d", MARKERS[one.marker] ?? MARKERS.line);
      path.setAttribute("fill", one.color);
      icon.append(path);
      entry.append(icon, ` ${one.name}`);
      entry.addEventListener("click", (event) => this.choose(number, event.ctrlKey || event.shiftKey || event.metaKey));
      for (const [kind, lit] of [["pointerenter", number], ["focus", number], ["pointerleave", -1], ["blur", -1]]) {
        entry.addEventListener(kind, () => {
          for (const chart of charts) chart.set("lit", chart.names.indexOf(this.names[lit]));
        });
      }
      return [number, entry];
    }));
    if (named.length < names.length) element("li", list, { class: "quiet" }, `${names.length - named.length} others (grey)`);
    this.showChosen();
  }

  /** Hide a series or show it again, or show it alone, in all charts of the page that have it; once more shows all. */
  choose(number, hide) {
    const name = this.names[number];
    const alone = !hiddenNames.has(name) && this.names.every((one) => one === name || hiddenNames.has(one));
    for (const one of hide ? [name] : this.names) {
      const shown = hide ? hiddenNames.has(one) : alone || one === name;
      if (shown) hiddenNames.delete(one);
      else hiddenNames.add(one);
    }
    for (const chart of charts) chart.showChosen();
  }

  /** Show and hide the series as chosen on the page. */
  showChosen() {
    this.entries?.forEach((entry, place) => entry.setAttribute("aria-pressed", String(!hiddenNames.has(this.names[place]))));
    this.set("hidden", this.hiddenNumbers());
  }

  addButtons() {
    const bar = element("p", this.figure, { class: "tools" });
    this.canvas.after(bar);
    const zooms = { "Zoom in": () => this.zoom(0.5), "Zoom out": () => this.zoom(2), "Reset": () => this.zoom(0) };
    const actions = {
      ...(canZoom(this.figure) ? zooms : {}),
      "Save view as SVG": () => this.save("svg"), "as PNG": () => this.save("png"),
    };
    for (const [name, action] of Object.entries(actions)) {
      element("button", bar, { type: "button" }, name).addEventListener("click", action);
    }
  }

  /** Scale the axes around their middle; 0 resets them. */
  async zoom(factor) {
    for (const [name, signal] of Object.entries(this.ranges())) {
      const scale = this.view.scale(name);
      const [low, high] = scale.domain().map(Number).sort((a, b) => a - b);
      const log = scale.type === "log";
      const [first, last] = log ? [Math.log(low), Math.log(high)] : [low, high];
      const [middle, half] = [(first + last) / 2, factor * (last - first) / 2];
      const range = [middle - half, middle + half];
      this.view.signal(signal, factor ? (log ? range.map(Math.exp) : range) : null);
    }
    await this.view.runAsync();
  }

  /** Save the chart as it is shown, with title and legend. */
  async save(form) {
    const place = document.createElement("div");
    const { view } = await this.embed(place, this.specification(this.width, { own: true }), true);
    await restore(view, this.state());
    const link = element("a", document.body, { href: await view.toImageURL(form, 2), download: `${this.meta.name ?? "figure"}.${form}` });
    link.click();
    link.remove();
    view.finalize();
  }

  /** Draw now, and again when the width or the color scheme changes. */
  start() {
    let drawing = Promise.resolve();
    const redraw = () => { drawing = drawing.then(() => this.draw()); };
    charts.push(this);
    this.addLegend();
    this.addButtons();
    this.addKeys();
    new ResizeObserver(redraw).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.width = 0; redraw(); });
  }
}

/** Figures of the page; those of published sites are drawn already, and start when a reader wants to zoom. */
const waiting = new Set();
for (const figure of document.querySelectorAll("div.plot")) {
  if (figure.querySelector(".canvas > svg")) {
    if (!canZoom(figure)) continue;
    const button = element("button", element("p", figure, { class: "tools" }), { type: "button" }, "Zoom");
    button.addEventListener("click", () => { button.parentElement.remove(); new Chart(figure).start(); });
  } else waiting.add(figure);
}
const visible = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) start(entry.target);
}, { rootMargin: "200px" });

/** Start the chart of a figure once. */
function start(figure) {
  visible.unobserve(figure);
  if (waiting.delete(figure)) new Chart(figure).start();
}

for (const figure of waiting) visible.observe(figure);
// The others follow when the browser has time (Safari does not say when): a print shows them all, and does not wait.
const whenIdle = window.requestIdleCallback ?? ((work) => setTimeout(work, 50));
const startNext = () => {
  for (const figure of waiting) { start(figure); whenIdle(startNext); return; }
};
whenIdle(startNext);
