// Draws the figures of a page, in its colours, and again when these change or the page is printed.

(() => {
  const plots = [...document.querySelectorAll(".paci-plot")];
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] };
  let shown = null;

  // The figures are made for the light theme; SWAP names every light colour's counterpart.
  const dark = (value) => {
    if (typeof value === "string") return Object.hasOwn(SWAP, value) ? SWAP[value] : value;
    if (Array.isArray(value)) return value.map(dark);
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, dark(v)]));
    return value;
  };

  const draw = (theme) => {
    if (theme === shown) return;
    shown = theme;
    for (const plot of plots) {
      const spec = JSON.parse(plot.closest(".paci-figure").querySelector("script").textContent);
      const figure = theme === "dark" ? dark(spec) : spec;
      Plotly.react(plot, figure.data, { ...figure.layout, width: undefined, autosize: true }, config);
    }
  };

  const follow = () => {
    const asked = document.body.dataset.theme;
    draw(asked === "dark" || (asked !== "light" && system.matches) ? "dark" : "light");
  };

  new MutationObserver(follow).observe(document.body, { attributes: true, attributeFilter: ["data-theme"] });
  system.addEventListener("change", follow);
  follow();

  // Paper is white and narrow, and plotly does not notice.
  const PAPER = 660;
  window.addEventListener("beforeprint", () => {
    draw("light");
    for (const plot of plots) Plotly.relayout(plot, { width: PAPER });
  });
  window.addEventListener("afterprint", () => {
    for (const plot of plots) Plotly.relayout(plot, { width: null, autosize: true });
    follow();
  });
})();
