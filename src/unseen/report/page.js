"use strict";
const keep = (key, value) => { try { sessionStorage.setItem(key, value) } catch { /* a page opened from a file may not keep anything */ } };
const kept = (key) => { try { return sessionStorage.getItem(key) } catch { return null } };

const showRule = (name) => document.querySelectorAll("[data-rule]").forEach((part) => { part.hidden = part.dataset.rule !== name });
const radios = [...document.querySelectorAll("input[name=rule]")];
const chosen = radios.find((radio) => radio.value === kept("rule")) || radios.find((radio) => radio.checked) || radios[0];
if (chosen) { chosen.checked = true; showRule(chosen.value) }
radios.forEach((radio) => radio.addEventListener("change", () => { keep("rule", radio.value); showRule(radio.value) }));

document.querySelectorAll("[data-toggle]").forEach((button) => button.addEventListener("click", () => {
  const off = button.getAttribute("aria-pressed") === "true";
  button.setAttribute("aria-pressed", String(!off));
  document.querySelectorAll(`[data-m="${button.dataset.toggle}"]`).forEach((line) => line.classList.toggle("off", off));
}));

const table = document.getElementById("all-runs");
const valueOf = (row, column) => { const cell = row.cells[column]; return cell.dataset.v ?? cell.textContent.trim() };
const inOrder = (a, b) => (Number.isNaN(parseFloat(a)) || Number.isNaN(parseFloat(b)) ? a.localeCompare(b) : parseFloat(a) - parseFloat(b));
table.querySelectorAll("[data-sort]").forEach((button) => button.addEventListener("click", () => {
  const heading = button.closest("th"), down = heading.getAttribute("aria-sort") === "ascending", column = Number(button.dataset.sort);
  table.querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows].sort((a, b) => (down ? -1 : 1) * inOrder(valueOf(a, column), valueOf(b, column)));
  table.tBodies[0].append(...rows);
}));
document.getElementById("filter").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean), rows = [...table.tBodies[0].rows];
  rows.forEach((row) => { const text = row.textContent.toLowerCase(); row.hidden = !words.every((word) => text.includes(word)) });
  document.getElementById("shown").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} runs`;
});

const root = document.documentElement;
const theme = kept("theme");
if (theme) root.dataset.theme = theme;
document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  keep("theme", root.dataset.theme);
});
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true }));
