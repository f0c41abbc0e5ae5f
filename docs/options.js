// The search of options.md: rows of options.json that contain every word of the field.
(async () => {
  const field = document.querySelector("#options-search");
  const body = document.querySelector("#options-table tbody");
  const count = document.querySelector("#options-count");
  const response = await fetch(document.querySelector("#options-data a").href);
  const rows = Object.entries(await response.json()).flatMap(([path, options]) =>
    options.map(([name, standard, ours, status, note]) => [path, name, standard || "required", ours, status, note]),
  );

  function show() {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = rows.filter((row) => words.every((word) => row.join(" ").toLowerCase().includes(word)));
    count.textContent = `${found.length} of ${rows.length} options`;
    body.replaceChildren(
      ...found.slice(0, 200).map((cells) => {
        const row = document.createElement("tr");
        for (const text of cells) row.insertCell().textContent = text;
        return row;
      }),
    );
  }

  field.addEventListener("input", show);
  field.value = decodeURIComponent(location.hash.slice(1));
  show();
})();
