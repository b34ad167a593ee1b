// Shows a plotly figure. The figure is held by a plain widget, plotly's own code by another; this one only draws.

const loaded = (globalThis.paciLabPlotly ??= new Map());  // plotly's 5 MB of code, once a page

function plotly(code) {
  const version = code.get("version");
  if (!loaded.has(version)) {
    const address = URL.createObjectURL(new Blob([code.get("source")], { type: "text/javascript" }));
    loaded.set(version, import(address));
  }
  return loaded.get(version);
}

// A change of many traces has gaps for those that keep what they have. Plotly 7.1 would write the word for a gap into
// the figure that it keeps, which is seen once that is drawn again.
function withGaps(part) {
  if (part === "_undefined_") return undefined;
  if (Array.isArray(part)) return part.map(withGaps);
  if (part?.constructor !== Object) return part;
  return Object.fromEntries(Object.entries(part).map(([key, value]) => [key, withGaps(value)]));
}

export default () => {
  let held, chart, drawing;
  // What plotly sees of the figure. Its long reports of every default it chose would cost the kernel time for nothing.
  const figure = {
    get: (name) => (name.startsWith("_py2js") ? withGaps(held.get(name)) : held.get(name)),
    set: (name, value) => /Deltas?$/.test(name) || held.set(name, value),
    save_changes: () => held.save_changes(),
    on: (name, action) => held.on(name, action, drawing ?? figure),
  };
  return {
    async initialize({ model }) {
      const [holder, code] = await Promise.all(["of", "code"].map((name) => model.widget_manager.get_model(model.get(name))));
      chart = (await plotly(code)).default();
      held = holder;
      chart.initialize({ model: figure });
      // What changed before plotly listened is in no message that it will see: ask for the whole figure, and again when
      // the answer was overtaken by a later change.
      const whole = () => held.comm.send({ method: "request_state" });
      const edits = "change:_last_trace_edit_id change:_last_layout_edit_id";
      held.on(edits, () => Object.entries(held.changed).some(([name, id]) => /edit_id$/.test(name) && id < held.previous(name)) && whole());
      whole();
    },
    render({ el }) {
      const name = () => el.setAttribute("aria-label", held.get("spoken"));
      el.setAttribute("role", "img");
      held.on("change:spoken", name);
      name();
      let remove = () => {}, waiting = 0, wide = 0;
      const stop = () => {
        cancelAnimationFrame(waiting);
        if (drawing) held.off(null, null, drawing);
        remove();
      };
      const draw = () => {
        stop();
        drawing = {};
        wide = el.clientWidth;
        remove = chart.render({ el });
      };
      draw();
      const again = () => {
        cancelAnimationFrame(waiting);
        waiting = requestAnimationFrame(draw);
      };
      held.on("change:_widget_data change:_widget_layout", again);
      const size = new ResizeObserver(() => el.clientWidth && el.clientWidth !== wide && again());
      size.observe(el);
      return () => {
        size.disconnect();
        held.off("change:spoken", name);
        held.off("change:_widget_data change:_widget_layout", again);
        stop();
      };
    },
  };
};
