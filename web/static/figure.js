// Draw the page's figure with Plotly, from JSON in the page.

const LARGE = 100;
/** Line styles of series without markers. */
const DASHES = ["solid", "dash", "dot", "dashdot"];

/** Escape text, because Plotly interprets some HTML. */
function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Horizontal position: a day, or an offset within the place. */
function position(picture, mark) {
  if (picture.dates) return picture.places[mark.place];
  if (picture.bins) return mark.place;
  return mark.place + 0.8 * ((mark.series + 0.5) / picture.series.length - 0.5);
}

function traces(picture, panel, width) {
  // Close marks are smaller.
  const size = Math.min(8, Math.max(4, width / (picture.places.length * (picture.dates ? 1 : picture.series.length))));
  return picture.series.map((one, number) => {
    const marks = panel.marks.filter((mark) => mark.series === number);
    const shared = {
      name: plain(one.name),
      x: marks.map((mark) => position(picture, mark)),
      hoverinfo: "text",
      text: marks.map((mark) => plain(mark.text).replaceAll("\n", "<br>")),
      showlegend: false,
    };
    if (marks.length && marks[0].box.length) {
      const at = (place) => marks.map((mark) => mark.box[place]);
      return {
        ...shared, type: "box", lowerfence: at(0), q1: at(1), median: at(2), q3: at(3), upperfence: at(4),
        line: { color: one.color, width: 1.5 }, hoverinfo: "y",
        width: picture.dates ? undefined : 0.6 / picture.series.length,
      };
    }
    if (picture.bins) {
      // Extend the first and last bin to their outer edges.
      const edges = [{ ...marks[0], place: marks[0]?.place - 0.5 }, { ...marks.at(-1), place: marks.at(-1)?.place + 0.5 }];
      const steps = marks.length ? [edges[0], ...marks, edges[1]] : [];
      return {
        ...shared, type: "scatter", mode: "lines", x: steps.map((mark) => mark.place), y: steps.map((mark) => mark.y),
        text: steps.map((mark) => plain(mark.text).replaceAll("\n", "<br>")),
        line: { color: one.color, width: 2, shape: "hvh", dash: DASHES[number % DASHES.length] },
      };
    }
    return {
      ...shared, type: "scatter", mode: picture.dates ? "lines+markers" : "markers",
      y: marks.map((mark) => mark.y),
      error_y: {
        type: "data", symmetric: false, color: one.color, thickness: 1.2, width: 3,
        array: marks.map((mark) => (mark.high === null ? 0 : mark.high - mark.y)),
        arrayminus: marks.map((mark) => (mark.low === null ? 0 : mark.y - mark.low)),
      },
      marker: { color: one.color, symbol: one.marker, size },
      line: { color: one.color, width: 1.2 },
    };
  });
}

/** Range of the vertical axis, common to all panels. */
function reach(picture) {
  const marks = picture.panels.flatMap((panel) => panel.marks);
  const low = Math.min(...marks.map((mark) => mark.box[0] ?? mark.low ?? mark.y));
  const high = Math.max(...marks.map((mark) => mark.box[4] ?? mark.high ?? mark.y));
  if (picture.log) {
    const ends = marks.map((mark) => mark.box[0] ?? mark.low ?? mark.y);
    const least = Math.min(...ends.map((end, place) => (end > 0 ? end : marks[place].y)));
    return [Math.log10(least) - 0.05, Math.log10(high) + 0.05];
  }
  const room = 0.05 * (high - Math.min(low, 0)) || 1;
  return [low >= 0 ? 0 : low - room, high > 0 ? high + room : 0];
}

function layout(picture, range, several, width) {
  const ink = color("--ink");
  const line = color("--line");
  const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, automargin: true, fixedrange: false };
  const places = picture.places.map(plain);
  const longest = Math.max(...places.map((place) => place.length));
  const room = (width - 82) / places.length;
  const turned = 7.5 * longest > room && !picture.dates;
  // Plotly omits slanted labels that do not fit to the left of their place.
  const steep = several || places.length > 12 || room < 30 || 5.7 * longest > 70 + room / 2;
  const angle = !turned ? 0 : steep ? 90 : 40;
  // Bins are labeled by their lower edges.
  const ticks = places.map((_, place) => place - (picture.bins ? 0.5 : 0));
  const named = places.map((_, place) => places.length < LARGE || place % 5 === 0);
  // Reserve space for labels, which Plotly would omit otherwise.
  const below = { 0: 20, 40: Math.min(5 * longest, 220), 90: Math.min(6.2 * longest, 300) }[angle];
  return {
    height: (several ? 260 : 420) + below,
    margin: { l: 70, r: 12, t: 12, b: 45 + below },
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: ink },
    hoverlabel: { align: "left", font: { size: 13 } },
    hovermode: "closest",
    xaxis: picture.dates
      ? { ...axis, type: "date", title: { text: plain(picture.x_title) } }
      : {
        ...axis, type: "linear", showgrid: false, zeroline: false, title: { text: plain(picture.x_title), standoff: 10 },
        range: [-0.5, places.length - 0.5], tickmode: "array", tickangle: angle,
        tickfont: { size: angle === 90 ? 10 : 12 }, automargin: false,
        tickvals: ticks.filter((_, place) => named[place]), ticktext: places.filter((_, place) => named[place]),
      },
    yaxis: { ...axis, type: picture.log ? "log" : "linear", range, title: { text: plain(picture.y_title) } },
  };
}

function draw() {
  const picture = JSON.parse(document.getElementById("picture").textContent);
  const canvases = [...document.querySelectorAll(".plot .canvas")];
  const range = reach(picture);
  const config = {
    responsive: true, displaylogo: false, plotlyServerURL: "", showLink: false, showEditInChartStudio: false,
    modeBarButtonsToRemove: ["sendDataToCloud", "select2d", "lasso2d", "toImage", "autoScale2d"],
  };
  picture.panels.forEach((panel, number) => {
    const width = canvases[number].clientWidth;
    window.Plotly.react(
      canvases[number], traces(picture, panel, width),
      layout(picture, range, picture.panels.length > 1, width), config,
    );
  });
}

draw();
// Redraw when the system's color scheme changes.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
