"use strict";
// The page works without this; with it, a click on a heading sorts its table.
for (const table of document.querySelectorAll("table.board")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => {
        const cell = row.cells[column];
        const number = parseFloat(cell.dataset.value);
        return Number.isNaN(number) ? (cell.dataset.value === "" ? null : cell.textContent) : number;
      };
      const rows = [...body.rows].sort((a, b) => {
        const [one, other] = [key(a), key(b)];
        if (one === null || other === null) return (one === null) - (other === null);
        const order = typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other));
        return down ? -order : order;
      });
      body.append(...rows);
    });
  });
}
