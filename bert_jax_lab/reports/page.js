// The data of a page, its colors, and the switch between light and dark.
"use strict";
const page = (() => {
  const root = document.documentElement;
  const listeners = [];
  const system = matchMedia("(prefers-color-scheme: dark)");

  function isDark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  }

  function tell() {
    const button = document.getElementById("theme");
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colors`);
    for (const listener of listeners) listener();
  }

  // A canvas cannot use CSS variables, and getComputedStyle does not resolve light-dark() in one:
  // the color of an element is resolved.
  function colour(name) {
    const probe = document.createElement("span");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    const value = getComputedStyle(probe).color;
    probe.remove();
    return value;
  }

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children);
    return element;
  }

  for (const element of document.querySelectorAll("details[open]")) element.open = false;
  root.dataset.scripts = "on";
  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    tell();
  });
  system.addEventListener("change", tell);
  tell();

  return {
    data: JSON.parse(document.getElementById("data").textContent),
    colour,
    isDark,
    make,
    onTheme: (listener) => listeners.push(listener),
  };
})();
