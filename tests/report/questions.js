// What tests ask a report in the browser. Each answer is a list of what is wrong, or plain data.
"use strict";
const ask = (() => {
  const shown = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  const box = (element) => element.getBoundingClientRect();
  const rgba = (text) => {
    const parts = text.match(/[\d.]+/g).map(Number);
    return text.startsWith("color(srgb") ? parts.slice(0, 3).map((p) => p * 255).concat(parts[3] ?? 1) : [...parts, 1].slice(0, 4);
  };
  const luminance = (colour) =>
    colour.slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
      .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (one, other) => {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  function paperOf(element) {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] === 1) return colour;
    }
    return [255, 255, 255, 1];
  }
  const labels = (chart) => [...chart.querySelectorAll("svg text")].filter((text) => shown(text) && text.textContent.trim() && box(text).width);

  return {
    // Charts that are only a frame: no drawing, or no mark in it.
    undrawn: () =>
      [...document.querySelectorAll(".chart")].filter((chart) => {
        const drawing = chart.querySelector("svg.main-svg");
        const marks = chart.querySelectorAll(".point path, .point, .js-line, .points path");
        return !drawing || box(drawing).width < 200 || box(drawing).height < 80 || !marks.length;
      }).map((chart) => chart.id),

    charts: () => [...document.querySelectorAll(".chart")].map((chart) => chart.id),

    // Text with less contrast than WCAG AA asks for.
    faint: () =>
      [...document.querySelectorAll("body *")].filter((element) =>
        !element.closest("svg, script, style, noscript") && shown(element) &&
        [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
      ).concat([...document.querySelectorAll(".chart")].flatMap(labels).filter((text) => !text.closest(".bars")))
        .map((element) => {
          const style = getComputedStyle(element);
          const drawn = element instanceof SVGElement;
          // A number that stands on a bar has a background of its own.
          const behind = element.parentElement.querySelector("rect.bg");
          const ground = drawn && behind && getComputedStyle(behind).fillOpacity > 0 && rgba(getComputedStyle(behind).fill)[3] === 1
            ? rgba(getComputedStyle(behind).fill) : paperOf(drawn ? element.closest(".chart") : element);
          const ratio = contrast(rgba(drawn ? style.fill : style.color), ground);
          return ratio < 4.5 ? `${element.tagName} ${element.textContent.slice(0, 40)}: ${ratio.toFixed(2)}` : null;
        }).filter(Boolean),

    // Labels of charts that lie on one another or are cut off by the edge of their chart.
    crowded: () =>
      [...document.querySelectorAll(".chart")].flatMap((chart) => {
        const frame = box(chart);
        const texts = labels(chart);
        const cut = texts.filter((text) => box(text).left < frame.left - 1 || box(text).right > frame.right + 1 || box(text).top < frame.top - 1 || box(text).bottom > frame.bottom + 1);
        const overlapping = texts.flatMap((one, index) => texts.slice(index + 1).filter((other) => {
          const [a, b] = [box(one), box(other)];
          return Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
        }).map((other) => `${chart.id}: ${one.textContent} / ${other.textContent}`));
        return [...cut.map((text) => `${chart.id}: ${text.textContent} is cut off`), ...overlapping];
      }),

    // Elements that are wider than the page and do not scroll by themselves. (A phone's innerWidth grows with them.)
    overflowing: () => {
      const width = document.documentElement.clientWidth;
      const scrolls = (element) => element && (getComputedStyle(element).overflowX !== "visible" || scrolls(element.parentElement));
      return [...document.querySelectorAll("body *")]
        .filter((element) => shown(element) && box(element).right > width + 1 && !scrolls(element.parentElement))
        .map((element) => `${element.tagName}.${element.className}`);
    },

    // What a screen reader stumbles over.
    unreadable: () => {
      const wrong = [];
      for (const [selector, count] of [["header", 1], ["nav[aria-label]", 1], ["main", 1], ["footer", 1], ["h1", 1], ["html[lang]", 1]]) {
        if (document.querySelectorAll(selector).length !== count) wrong.push(`not ${count} ${selector}`);
      }
      let level = 0;
      for (const heading of document.querySelectorAll("h1, h2, h3, h4")) {
        const next = Number(heading.tagName[1]);
        if (next > level + 1) wrong.push(`${heading.textContent}: level ${next} after ${level}`);
        level = next;
      }
      for (const section of document.querySelectorAll("section")) {
        if (!document.getElementById(section.getAttribute("aria-labelledby"))) wrong.push(`section ${section.id} has no name`);
      }
      for (const chart of document.querySelectorAll(".chart")) {
        if (chart.getAttribute("role") !== "img" || chart.getAttribute("aria-label").length < 60) wrong.push(`${chart.id} is not described`);
        if (!chart.closest("section").querySelector("table")) wrong.push(`${chart.id} has no table`);
      }
      for (const table of document.querySelectorAll("table")) {
        if (!table.caption?.textContent) wrong.push("a table has no caption");
        if ([...table.querySelectorAll("th")].some((cell) => !cell.scope)) wrong.push(`${table.caption?.textContent}: a heading has no scope`);
      }
      for (const link of document.querySelectorAll("a")) {
        if (!document.getElementById(link.hash.slice(1))) wrong.push(`${link.hash} leads nowhere`);
      }
      return wrong;
    },

    // What the keyboard reaches, in the order of the page.
    reachable: () =>
      [...document.querySelectorAll("a[href], button, summary, [tabindex='0']")].filter(shown).map(ask.name),

    name: (element) => `${element.tagName.toLowerCase()} ${(element.getAttribute("aria-label") ?? element.textContent).trim().slice(0, 40)}`,

    focus: () => {
      const style = getComputedStyle(document.activeElement);
      return { name: ask.name(document.activeElement), outline: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 };
    },

    loaded: () => performance.getEntriesByType("resource").map((entry) => entry.name),

    opening: () => ({
      first_paint_ms: performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null,
      charts_drawn_ms: performance.getEntriesByName("holdfast-drawn")[0].startTime,
    }),
  };
})();
