// Draws the charts of the report in the colours of the page, and keeps them so: theme, width, print.
"use strict";
(() => {
  const root = document.documentElement;
  const charts = [...document.querySelectorAll(".chart")];
  const roles = JSON.parse(document.getElementById("roles").textContent);
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const NARROW = 560; // pixels; as in page.css
  const PAPER = 680; // pixels between the margins of an A4 or letter page

  // A custom property is text; only a property that takes a colour resolves light-dark() in it.
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const colourOf = (property) => {
    probe.style.color = `var(${property})`;
    return getComputedStyle(probe).color;
  };

  function drawingOf(chart) {
    let text = document.getElementById(`${chart.id}-data`).textContent;
    for (const [standIn, property] of Object.entries(roles)) {
      text = text.replaceAll(`"${standIn}"`, JSON.stringify(colourOf(property)));
    }
    const { data, layout } = JSON.parse(text);
    if (chart.clientWidth < NARROW) {
      layout.font.size = 11;
      layout.xaxis.nticks = 5;
    }
    // A finger that moves over a chart scrolls the page.
    if (matchMedia("(hover: none)").matches) layout.dragmode = false;
    layout.hoverlabel.bgcolor = colourOf("--card");
    layout.hoverlabel.bordercolor = colourOf("--soft");
    layout.hoverlabel.font.color = colourOf("--ink");
    return { data, layout };
  }

  async function draw(chart, width) {
    try {
      const { data, layout } = drawingOf(chart);
      layout.width = width;
      await Plotly.react(chart, data, layout, { displayModeBar: false, responsive: true });
    } catch (error) {
      console.error(chart.id, error);
      const words = document.createElement("p");
      words.className = "undrawn";
      words.textContent = "This chart could not be drawn. Its numbers are in the table.";
      chart.replaceChildren(words);
    }
  }

  // One chart per turn, so that the page can be read and scrolled meanwhile.
  async function drawAll() {
    root.dataset.drawn = "";
    for (const chart of charts) {
      await draw(chart);
      await new Promise((resume) => setTimeout(resume));
    }
    root.dataset.drawn = "yes";
  }

  const button = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const nameButton = () => {
    button.textContent = isDark() ? "Light page" : "Dark page";
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    nameButton();
    drawAll();
  });
  prefersDark.addEventListener("change", () => {
    nameButton();
    drawAll();
  });
  nameButton();

  // On paper: light, as wide as the paper, with every table open. The browser does not wait, so neither does this.
  let onScreen = { opened: [], theme: undefined };
  addEventListener("beforeprint", () => {
    onScreen = { opened: [...document.querySelectorAll("details:not([open])")], theme: root.dataset.theme };
    for (const detail of onScreen.opened) detail.open = true;
    root.dataset.theme = "light";
    for (const chart of charts) draw(chart, PAPER);
  });
  addEventListener("afterprint", () => {
    for (const detail of onScreen.opened) detail.open = false;
    if (onScreen.theme) root.dataset.theme = onScreen.theme;
    else delete root.dataset.theme;
    drawAll();
  });

  drawAll().then(() => performance.mark("holdfast-drawn"));
})();
