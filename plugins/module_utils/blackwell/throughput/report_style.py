"""The style sheet of the report: light, dark, phone and paper."""

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--card:#f7f8fa;--rule:#d8dde3;--ink:#1a1f26;--soft:#57606a;
--accent:#0a5bd0;--second:#b0520a;--old:#7a838d;--pass:#1a7f37;--fail:#c21d29;--undecidable:#8a5a00;
--pass-bg:#e7f5ea;--fail-bg:#fdebec;--undecidable-bg:#fdf3dc;--none-bg:#eef1f4;--none:#57606a}
@media (prefers-color-scheme:dark){:root{--paper:#0f1318;--card:#171d24;--rule:#303842;--ink:#e6eaef;
--soft:#9aa5b1;--accent:#6cb0ff;--second:#f0a35e;--old:#8a95a1;--pass:#4cc366;--fail:#ff7a80;
--undecidable:#e0ad42;--pass-bg:#12261a;--fail-bg:#2e1619;--undecidable-bg:#2b2311;--none-bg:#1d242c;
--none:#9aa5b1}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans","DejaVu Sans",sans-serif}
main{max-width:1120px;margin:0 auto;padding:24px 20px 64px}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:44px 0 4px;padding-top:18px;border-top:1px solid var(--rule)}
h3{font-size:1rem;margin:0 0 8px}
p{margin:6px 0}
.soft,.lead{color:var(--soft)}
.lead{max-width:75ch;margin-bottom:14px}
.soft{font-size:.88rem;overflow-wrap:anywhere}
.verdict{border-left:6px solid;border-radius:6px;padding:14px 18px;margin:18px 0}
.verdict p{max-width:85ch;overflow-wrap:anywhere}
.verdict .word{font-weight:700;font-size:1.05rem;letter-spacing:.01em}
.verdict .headline{font-size:1.05rem}
.verdict ul{margin:8px 0 0;padding-left:20px}
.verdict li{overflow-wrap:anywhere;margin:3px 0}
.pass-card{background:var(--pass-bg);border-color:var(--pass)}.pass-card .word{color:var(--pass)}
.fail-card{background:var(--fail-bg);border-color:var(--fail)}.fail-card .word{color:var(--fail)}
.undecidable-card{background:var(--undecidable-bg);border-color:var(--undecidable)}
.undecidable-card .word{color:var(--undecidable)}
.none-card{background:var(--none-bg);border-color:var(--none)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:16px 0}
.tile{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:10px 14px}
.tile b{display:block;font-size:1.45rem;line-height:1.3;font-variant-numeric:tabular-nums}
.tile small{font-size:.55em;font-weight:500;color:var(--soft);margin-left:.25em}
.tile span{display:block;color:var(--soft);font-size:.85rem}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(320px,100%),1fr));gap:16px}
.roomy{grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr))}
.card{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:14px 16px;min-width:0;
break-inside:avoid}
.plot{display:block;width:100%;height:auto;margin:0 auto}
.narrow{display:none}
.key{display:flex;flex-wrap:wrap;gap:4px 18px;list-style:none;padding:0;margin:0 0 10px;font-size:.88rem;
color:var(--soft)}
.key svg{width:22px;height:12px;margin-right:6px;vertical-align:-1px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.92rem}
th,td{text-align:left;padding:5px 12px 5px 0;border-bottom:1px solid var(--rule);vertical-align:top}
thead th{color:var(--soft);font-weight:600;font-size:.85rem}
tbody th{font-weight:500}
td.n,th.n{text-align:right}
.scroll{overflow-x:auto}
.pairs th{width:34%;color:var(--soft);font-weight:500}
.pairs td{overflow-wrap:anywhere}
details summary{cursor:pointer;padding:6px 0}
svg text{font:11px system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans","DejaVu Sans",sans-serif;
fill:var(--soft)}
svg text{paint-order:stroke;stroke:var(--card);stroke-width:3px;stroke-linejoin:round}
svg text.strong{fill:var(--ink);font-weight:600}
svg text.value{fill:var(--ink)}
svg text.small{font-size:10px}
.grid{stroke:var(--rule);stroke-width:1}
.axis{stroke:var(--old);stroke-width:1}
.iso{stroke:var(--rule);stroke-width:1.2;fill:none}
.bad{fill:var(--fail);opacity:.13}
.band{fill:var(--old);opacity:.16}
.margin{stroke:var(--fail);stroke-width:1.5;stroke-dasharray:3 2}
.reference{stroke:var(--old);stroke-width:1.5;stroke-dasharray:5 3}
.eagle3,.new{color:var(--accent)}.baseline,.other{color:var(--second)}.old{color:var(--old)}
.pass{color:var(--pass)}.fail{color:var(--fail)}.undecidable{color:var(--undecidable)}.none{color:var(--none)}
svg g{fill:currentColor;stroke:currentColor;stroke-width:0}
svg g .hollow{fill:var(--card);stroke-width:1.8}
svg g .stroke{fill:none;stroke-width:2.2}
.trend{fill:none;stroke:currentColor;stroke-width:1.6}
.trend.baseline,.trend.other{stroke-dasharray:6 3}
.bar{stroke:currentColor;stroke-width:5;stroke-linecap:butt}
.whisker{stroke:currentColor;stroke-width:1.4;opacity:.6}
.median{stroke:currentColor;stroke-width:2.4}
.run{opacity:.62}
@media (max-width:760px){main{padding:16px 14px 48px}.wide{display:none}.narrow{display:block}
.card{padding:12px 10px}h1{font-size:1.35rem}th,td{padding-right:8px}.pairs th{width:40%}
.stack thead{display:none}.stack tr{display:block;border-bottom:1px solid var(--rule);padding:6px 0}
.stack th,.stack td{display:flex;justify-content:space-between;gap:16px;border:0;padding:1px 0}
.stack td::before{content:attr(data-head);color:var(--soft)}}
@media print{:root{color-scheme:light;--paper:#fff;--card:#fff;--rule:#c9cfd6;--ink:#000;--soft:#444;
--accent:#0a5bd0;--second:#b0520a;--old:#7a838d;--pass:#1a7f37;--fail:#c21d29;--undecidable:#8a5a00;
--pass-bg:#fff;--fail-bg:#fff;--undecidable-bg:#fff;--none-bg:#fff;--none:#57606a}
main{max-width:none;padding:0}body{font-size:11pt}h2,h3,.lead,.key{break-after:avoid}
.verdict{border-style:solid;border-width:1px 1px 1px 6px}.wide{display:block}.narrow{display:none}
.cards{grid-template-columns:repeat(2,1fr)}.scroll{overflow:visible}tr{break-inside:avoid}}
""".strip()
