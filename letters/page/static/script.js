"use strict";
// The page works without this script: it follows the depths and a running redrive, and selects all letters of a list.
(() => {
  const live = document.getElementById("live");

  // same makes a node like another one, and keeps what is equal: the focus and the scroll position stay.
  function same(old, fresh) {
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
      old.replaceWith(fresh.cloneNode(true));
      return;
    }
    if (old.nodeType === Node.TEXT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) return;
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    inside(old, fresh);
  }

  function inside(old, fresh) {
    const had = [...old.childNodes], gets = [...fresh.childNodes];
    gets.forEach((node, i) => (i < had.length ? same(had[i], node) : old.append(node.cloneNode(true))));
    had.slice(gets.length).forEach((node) => node.remove());
  }

  async function update() {
    const page = location.origin + location.pathname; // without a user and password, which fetch refuses in an address
    const answer = await fetch(new URL(live.dataset.from, page), { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").body;
    const focused = live.contains(document.activeElement);
    inside(live, fresh);
    live.removeAttribute("data-stale");
    if (live.querySelector("[data-ended]")) delete live.dataset.poll;
    if (focused && !live.contains(document.activeElement)) live.querySelector("[data-focus]")?.focus();
  }

  let timer = 0, asking = false;
  async function follow() {
    clearTimeout(timer);
    if (asking || document.hidden || !live.dataset.poll) return;
    asking = true;
    try {
      await update();
    } catch {
      live.dataset.stale = "No answer from the server. What you see is old.";
    }
    asking = false;
    if (live.dataset.poll) timer = setTimeout(follow, Number(live.dataset.poll));
  }
  if (live && live.dataset.poll) {
    timer = setTimeout(follow, Number(live.dataset.poll));
    document.addEventListener("visibilitychange", follow);
  }

  for (const all of document.querySelectorAll("[data-all]")) {
    const picks = [...document.getElementsByName(all.dataset.all)];
    const show = () => {
      const count = picks.filter((pick) => pick.checked).length;
      all.checked = count === picks.length;
      all.indeterminate = count > 0 && !all.checked;
    };
    all.addEventListener("change", () => picks.forEach((pick) => { pick.checked = all.checked; }));
    picks.forEach((pick) => pick.addEventListener("change", show));
    show();
  }
})();
