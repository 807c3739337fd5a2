"""Pages of HTML, and their templates: `html` of a run, `index` over many. Nothing else of the report imports it."""
