"use strict";
// The page works without this; with it, the answers can be narrowed down, and everything is printed.
const cards = [...document.querySelectorAll(".card")];
const control = (id) => document.getElementById(id);
const form = control("filter");
function narrow() {
  const task = control("task").value;
  const differs = control("differs").checked;
  const wrong = control("wrong").checked;
  let shown = 0;
  for (const card of cards) {
    const fits =
      (!task || card.dataset.task === task) &&
      (!differs || card.dataset.differs === "1") &&
      (!wrong || card.dataset.wrong === "1");
    card.hidden = !fits;
    shown += fits;
  }
  control("count").textContent = `${shown} shown`;
}
if (form) {
  form.addEventListener("input", narrow);
  form.addEventListener("submit", (event) => event.preventDefault());
  narrow();
}
const folded = [...document.querySelectorAll("details")];
addEventListener("beforeprint", () => folded.forEach((one) => (one.open = true)));
addEventListener("afterprint", () => folded.forEach((one) => (one.open = false)));
// a table that is wider than its box shows that it goes on
function edges() {
  for (const frame of document.querySelectorAll(".frame")) {
    const box = frame.firstElementChild;
    frame.classList.toggle("goes-on", box.scrollWidth - box.clientWidth - box.scrollLeft > 2);
  }
}
document.querySelectorAll(".scroll").forEach((box) => box.addEventListener("scroll", edges, { passive: true }));
addEventListener("resize", edges);
edges();
