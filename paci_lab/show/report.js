(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const specs = [...document.querySelectorAll("script.spec")];
  const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["sendChartToCloud", "select2d", "lasso2d"] };
  let chosen = null;

  // The figures are made for the light theme; SWAP names every light colour's counterpart.
  const dark = (value) => {
    if (typeof value === "string") return Object.hasOwn(SWAP, value) ? SWAP[value] : value;
    if (Array.isArray(value)) return value.map(dark);
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, dark(v)]));
    return value;
  };

  const show = () => {
    const theme = chosen ?? (system.matches ? "dark" : "light");
    root.dataset.theme = theme;
    button.textContent = theme === "dark" ? button.dataset.light : button.dataset.dark;
    for (const script of specs) {
      const spec = JSON.parse(script.textContent);
      const figure = theme === "dark" ? dark(spec) : spec;
      Plotly.react(script.dataset.for, figure.data, figure.layout, config);
    }
  };

  button.addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    show();
  });
  system.addEventListener("change", show);
  show();
})();
