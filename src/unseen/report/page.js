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

const root = document.documentElement;
const theme = kept("theme");
if (theme) root.dataset.theme = theme;
document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  keep("theme", root.dataset.theme);
});
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true }));
