"use strict";
(() => {
    const SVG = "http://www.w3.org/2000/svg";
    const KEEP = 300; // samples of history
    const CLASSES = [ // as they lie in a column, from below
        ["live_state", "live states"], ["cached_state", "cached states"], ["pinned", "pinned"],
        ["live_page", "live pages"], ["cached_page", "cached pages"], ["padding", "padding"],
        ["holes", "holes"], ["gap", "gap"]];
    const $ = (id) => document.getElementById(id);
    const history = []; // of what the charts show
    const fall = []; // columns of earlier pictures, newest first: [class shares of each bin]
    let key = "", paused = false, timer = 0, failed = 0, quiet = 0, last = null, shown = null;

    // --- text ---

    const int = (n) => Math.round(n).toLocaleString("en-US");
    const fixed = (v) => (v === 0 ? "0" : v >= 100 ? v.toFixed(0) : v >= 10 ? v.toFixed(1) : v.toFixed(2));
    const share = (a, b) => (b > 0 ? (100 * a / b).toFixed(1) + " %" : "–");
    const bytes = (n) => {
        const units = ["B", "KiB", "MiB", "GiB", "TiB"];
        let i = 0;
        for (; n >= 1024 && i < units.length - 1; i++) { n /= 1024; }
        return (i === 0 ? int(n) : fixed(n)) + " " + units[i];
    };
    const time = (s) => {
        if (s === null || !isFinite(s)) { return "–"; }
        if (s < 0.001) { return fixed(s * 1e6) + " µs"; }
        if (s < 1) { return fixed(s * 1e3) + " ms"; }
        return s < 120 ? fixed(s) + " s" : s < 7200 ? fixed(s / 60) + " min" : fixed(s / 3600) + " h";
    };
    const ms = (v) => (v === null ? "–" : time(v / 1e3));
    const short = (v) => (v >= 1e6 ? fixed(v / 1e6) + "M" : v >= 1e4 ? fixed(v / 1e3) + "k" : v >= 100
        ? int(v) : String(+v.toPrecision(3)));
    const sum = (a) => a.reduce((x, y) => x + y, 0);
    const median = (a) => {
        const v = a.filter((x) => x !== null).sort((x, y) => x - y);
        return v.length === 0 ? null : v[(v.length - 1) >> 1];
    };

    // --- elements: text goes in by textContent alone ---

    function make(parent, tag, attrs, text) {
        const e = document.createElement(tag);
        for (const [name, value] of Object.entries(attrs || {})) { e.setAttribute(name, value); }
        if (text !== undefined) { e.textContent = text; }
        parent.appendChild(e);
        return e;
    }
    function draw(parent, tag, attrs, text) {
        const e = document.createElementNS(SVG, tag);
        for (const [name, value] of Object.entries(attrs || {})) { e.setAttribute(name, value); }
        if (text !== undefined) { e.textContent = text; }
        parent.appendChild(e);
        return e;
    }
    // Rows of cells into a table; cells may be text or functions that fill their cell.
    function fill(table, head, rows, none) {
        const thead = table.tHead, body = table.tBodies[0];
        if (head !== null && (thead.rows.length === 0 || thead.rows[0].cells.length !== head.length)) {
            thead.replaceChildren();
            const tr = make(thead, "tr");
            head.forEach((text) => make(tr, "th", {scope: "col"}, text));
        }
        while (body.rows.length > Math.max(rows.length, rows.length === 0 ? 1 : 0)) { body.deleteRow(-1); }
        if (rows.length === 0) {
            body.replaceChildren();
            make(make(body, "tr"), "td", {class: "none", colspan: head === null ? 3 : head.length}, none);
            return;
        }
        rows.forEach((cells, i) => {
            let tr = body.rows[i];
            if (tr === undefined || tr.cells.length !== cells.length) {
                const fresh = document.createElement("tr");
                cells.forEach((_, k) => make(fresh, k === 0 ? "th" : "td", k === 0 ? {scope: "row"} : {}));
                if (tr === undefined) { body.appendChild(fresh); } else { tr.replaceWith(fresh); }
                tr = fresh;
            }
            cells.forEach((cell, k) => {
                if (typeof cell === "function") {
                    cell(tr.cells[k]);
                } else if (tr.cells[k].textContent !== cell) {
                    tr.cells[k].textContent = cell;
                }
            });
        });
    }

    // A figure: legend, drawing, and its numbers as a table that can be opened. Made once.
    const figures = {};
    function figure(id, legend, head) {
        if (figures[id] === undefined) {
            const root = $(id);
            if (legend.length > 0) {
                const ul = make(root, "ul", {class: "legend"});
                legend.forEach(([name, mark]) => {
                    const li = make(ul, "li");
                    const svg = draw(li, "svg", {viewBox: "0 0 18 10", "aria-hidden": "true"});
                    if (mark[0] === "s") {
                        draw(svg, "line", {x1: 0, y1: 5, x2: 18, y2: 5, class: mark});
                    } else if (mark === "mark") {
                        draw(svg, "line", {x1: 0, y1: 5, x2: 14, y2: 5, class: mark});
                    } else {
                        draw(svg, "rect", {x: 0, y: 0, width: 14, height: 10, class: mark});
                    }
                    li.appendChild(document.createTextNode(name));
                });
            }
            const svg = draw(root, "svg", {role: "img"});
            const box = make(root, "details");
            make(box, "summary", {}, "Numbers");
            const table = make(box, "table");
            make(table, "thead");
            make(table, "tbody");
            figures[id] = {root, svg, table, head};
        }
        const f = figures[id];
        f.svg.replaceChildren();
        return f;
    }
    function frame(f, height, words) {
        const wide = Math.max(240, f.root.clientWidth || 320);
        f.svg.setAttribute("viewBox", "0 0 " + wide + " " + height);
        f.svg.setAttribute("height", height);
        f.svg.setAttribute("aria-label", words);
        return {left: 50, top: 8, right: wide - 8, bottom: height - 20};
    }
    // The least of 1, 2, 5 times a power of ten that is at least v.
    function ceiling(v) {
        const ten = Math.pow(10, Math.floor(Math.log10(v > 0 ? v : 1)));
        return [1, 2, 5, 10].map((x) => x * ten).find((x) => x >= v * 0.999) || 10 * ten;
    }
    function yAxis(svg, b, top, unit) {
        for (let i = 0; i <= 2; i++) {
            const y = b.bottom - (b.bottom - b.top) * i / 2;
            draw(svg, "line", {x1: b.left, x2: b.right, y1: y, y2: y, class: i === 0 ? "base" : "axis"});
            draw(svg, "text", {x: b.left - 6, y: y + 4, "text-anchor": "end"},
                i === 0 ? "0" : short(top * i / 2) + (i === 2 ? unit : ""));
        }
    }

    // --- charts ---

    // Lines over the history, or areas stacked on each other.
    function overTime(id, series, unit, stacked, name) {
        const f = figure(id, series.map(([label, , mark]) => [label, mark]), ["", "now", "mean", "most"]);
        const values = series.map(([, get]) => history.map(get));
        const tops = stacked ? history.map((_, i) => sum(values.map((v) => v[i] || 0))) : [].concat(...values);
        const most = Math.max(0, ...tops.filter((v) => v !== null)), top = ceiling(most);
        const now = values.map((v) => (v.length > 0 ? v[v.length - 1] : null));
        const b = frame(f, 170, name + ": " + series.map(([label], i) => label + " " +
            (now[i] === null ? "unknown" : short(now[i]) + unit)).join(", "));
        const t1 = history[history.length - 1].t, t0 = Math.min(history[0].t, t1 - 30);
        const x = (i) => b.left + (history[i].t - t0) / (t1 - t0) * (b.right - b.left);
        const y = (v) => b.bottom - v / top * (b.bottom - b.top);
        yAxis(f.svg, b, top, unit);
        draw(f.svg, "text", {x: b.left, y: b.bottom + 15}, "–" + time(t1 - t0));
        draw(f.svg, "text", {x: b.right, y: b.bottom + 15, "text-anchor": "end"}, "now");
        const low = history.map(() => 0);
        series.forEach(([, , mark], k) => {
            const at = history.map((_, i) => i).filter((i) => values[k][i] !== null);
            if (at.length === 0) { return; }
            if (stacked) {
                const from = at.map((i) => x(i).toFixed(1) + "," + y(low[i]).toFixed(1));
                at.forEach((i) => { low[i] += values[k][i]; });
                const to = at.map((i) => x(i).toFixed(1) + "," + y(low[i]).toFixed(1));
                draw(f.svg, "polygon", {class: mark, points: from.concat(to.reverse()).join(" ")});
            } else {
                draw(f.svg, "polyline", {class: mark,
                    points: at.map((i) => x(i).toFixed(1) + "," + y(values[k][i]).toFixed(1)).join(" ")});
            }
        });
        fill(f.table, f.head, series.map(([label], k) => {
            const v = values[k].filter((z) => z !== null);
            return [label, now[k] === null ? "–" : short(now[k]) + unit,
                v.length ? short(sum(v) / v.length) + unit : "–", v.length ? short(Math.max(...v)) + unit : "–"];
        }), "");
    }

    // A value of which the share q lies at or below, as far as buckets tell.
    function quantile(h, q) {
        const n = sum(h.counts);
        let seen = 0;
        for (let i = 0; i < h.counts.length; i++) {
            if (seen + h.counts[i] >= q * n && h.counts[i] > 0) {
                const lo = i > 0 ? h.bounds[i - 1] : 0, hi = i < h.bounds.length ? h.bounds[i] : lo;
                return lo + (hi - lo) * (q * n - seen) / h.counts[i];
            }
            seen += h.counts[i];
        }
        return null;
    }
    function buckets(id, h, name) {
        const f = figure(id, [], ["at most", "requests", "share"]);
        const n = sum(h.counts), most = Math.max(...h.counts), used = h.counts.map((c, i) => (c > 0 ? i : -1))
            .filter((i) => i >= 0);
        const words = n === 0 ? "none yet" : "median " + time(quantile(h, 0.5)) + ", 90 % within " +
            time(quantile(h, 0.9)) + ", 99 % within " + time(quantile(h, 0.99)) + ", mean " + time(h.sum / n) +
            ", " + int(n) + " requests";
        const b = frame(f, 170, name + ": " + words);
        const top = ceiling(most);
        yAxis(f.svg, b, top, "");
        if (n > 0) {
            const from = Math.max(0, used[0] - 1), to = Math.min(h.counts.length - 1, used[used.length - 1] + 1);
            const each = (b.right - b.left) / (to - from + 1), gap = Math.max(1, Math.ceil(58 / each));
            for (let i = from; i <= to; i++) {
                const x = b.left + (i - from) * each, tall = h.counts[i] / top * (b.bottom - b.top);
                if (h.counts[i] > 0) {
                    draw(f.svg, "rect", {class: "f1", x: x + 1, width: Math.max(1, each - 2),
                        y: b.bottom - tall, height: tall});
                }
                if ((i - from) % gap === 0 && i < h.bounds.length && i < to) {
                    draw(f.svg, "text", {x: x + each, y: b.bottom + 15, "text-anchor": "middle"},
                        time(h.bounds[i]));
                }
            }
        }
        if (f.words === undefined) {
            f.words = make(f.root, "p", {class: "note"});
            f.root.insertBefore(f.words, f.root.lastChild.previousSibling);
        }
        f.words.textContent = words;
        fill(f.table, f.head, h.counts.map((c, i) => [i < h.bounds.length ? time(h.bounds[i]) : "more",
            int(c), share(c, n)]).filter((_, i) => h.counts[i] > 0), "none yet");
    }

    function acceptance(spec) {
        const f = figure("c-acc", [["accepted of those verified", "f3"], ["as the drafter expected", "mark"]],
            ["position", "verified", "accepted", "share", "expected"]);
        const p = spec.positions;
        const words = p.length === 0 ? "no draft was verified" : p.map(([v, a], i) => "position " + (i + 1) + " " +
            share(a, v)).join(", ");
        const b = frame(f, 170, "Acceptance by position: " + words);
        for (let i = 0; i <= 2; i++) {
            const y = b.bottom - (b.bottom - b.top) * i / 2;
            draw(f.svg, "line", {x1: b.left, x2: b.right, y1: y, y2: y, class: i === 0 ? "base" : "axis"});
            draw(f.svg, "text", {x: b.left - 6, y: y + 4, "text-anchor": "end"}, 50 * i + " %");
        }
        const each = Math.min(64, (b.right - b.left) / Math.max(1, p.length));
        p.forEach(([v, a, e], i) => {
            const x = b.left + i * each, tall = v > 0 ? a / v * (b.bottom - b.top) : 0;
            draw(f.svg, "rect", {class: "f3", x: x + 3, width: each - 6, y: b.bottom - tall, height: tall});
            if (e > 0) {
                const y = b.bottom - Math.min(1, e / v) * (b.bottom - b.top);
                draw(f.svg, "line", {class: "mark", x1: x + 1, x2: x + each - 1, y1: y, y2: y});
            }
            draw(f.svg, "text", {x: x + each / 2, y: b.bottom + 15, "text-anchor": "middle"}, i + 1);
        });
        if (p.length === 0) {
            draw(f.svg, "text", {x: (b.left + b.right) / 2, y: (b.top + b.bottom) / 2, "text-anchor": "middle"},
                "no draft was verified yet");
        }
        fill(f.table, f.head, p.map(([v, a, e], i) => [String(i + 1), int(v), int(a), share(a, v),
            e > 0 ? share(e, v) : "–"]), "no draft was verified yet");
    }

    function hits(d) {
        const f = figure("c-hit", [["all of it reused", "f1"], ["part lost for want of a state", "f2"]],
            ["prompt tokens", "tokens", "share of those looked up"]);
        const t = d.tokens, rows = d.finished.filter((r) => r.hit_page > 0);
        const b = frame(f, 170, "Of " + int(t.queried) + " prompt tokens looked up " + share(t.cached, t.queried) +
            " were reused, " + share(t.lost, t.queried) + " were lost for want of a state");
        const top = ceiling(Math.max(1, ...rows.map((r) => r.hit_page)));
        const x = (v) => b.left + v / top * (b.right - b.left), y = (v) => b.bottom - v / top * (b.bottom - b.top);
        yAxis(f.svg, b, top, "");
        draw(f.svg, "line", {class: "axis", x1: x(0), y1: y(0), x2: x(top), y2: y(top)});
        draw(f.svg, "text", {x: b.left + 6, y: b.top + 10}, "state length, tokens");
        draw(f.svg, "text", {x: b.right, y: b.bottom + 15, "text-anchor": "end"},
            "page length, tokens (to " + short(top) + ")");
        rows.forEach((r) => draw(f.svg, "circle", {class: "dot " + (r.hit_page > r.hit_state ? "f2" : "f1"),
            cx: x(r.hit_page), cy: y(r.hit_state), r: 4.5}));
        if (rows.length === 0) {
            draw(f.svg, "text", {x: (b.left + b.right) / 2, y: (b.top + b.bottom) / 2, "text-anchor": "middle"},
                d.finished.length > 0 ? "the last " + d.finished.length + " requests found nothing" : "none yet");
        }
        fill(f.table, f.head, [
            ["looked up", int(t.queried), share(t.queried, t.queried)],
            ["found and reused", int(t.cached), share(t.cached, t.queried)],
            ["lost for want of a state", int(t.lost), share(t.lost, t.queried)],
            ["known once, memory gone", int(t.ghost), share(t.ghost, t.queried)],
            ["not computed again, resumptions too", int(t.reused), ""],
            ["checkpoints written", int(d.checkpoints.written), ""],
            ["checkpoints skipped or pruned", int(d.checkpoints.skipped + d.checkpoints.pruned), ""]], "");
    }

    // --- the pool ---

    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
    const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.length === 4 ? hex[(i + 1) / 2] + hex[(i + 1) / 2]
        : hex.slice(i, i + 2), 16));

    // Shares of each bin by class, in the order of CLASSES.
    function columns(pool, picture) {
        const n = picture.n_bins, out = new Float32Array(n * CLASSES.length);
        CLASSES.forEach(([name], c) => {
            const runs = picture.bins[name];
            for (let i = 0; i + 2 < runs.length; i += 3) {
                for (let k = runs[i]; k < runs[i] + runs[i + 1]; k++) {
                    const whole = Math.min(picture.bin_bytes, pool.arena - k * picture.bin_bytes);
                    out[k * CLASSES.length + c] = runs[i + 2] / whole;
                }
            }
        });
        for (let k = 0; k < n; k++) { // what moved while it was looked at may be there twice
            const bin = out.subarray(k * CLASSES.length, (k + 1) * CLASSES.length), all = sum(bin);
            if (all > 1) { bin.forEach((v, c) => { bin[c] = v / all; }); }
        }
        return out;
    }
    function canvas(id) {
        const e = $(id), ratio = window.devicePixelRatio || 1;
        const w = Math.max(1, Math.round(e.clientWidth * ratio)), h = Math.max(1, Math.round(e.clientHeight * ratio));
        if (e.width !== w || e.height !== h) { e.width = w; e.height = h; }
        return [e.getContext("2d"), w, h, ratio];
    }
    function hatch(ctx, ratio) {
        const tile = document.createElement("canvas"), s = Math.round(6 * ratio);
        tile.width = tile.height = s;
        const c = tile.getContext("2d");
        c.fillStyle = colour("card");
        c.fillRect(0, 0, s, s);
        c.strokeStyle = colour("holes");
        c.lineWidth = 1.6 * ratio;
        [-s, 0, s].forEach((x) => { c.beginPath(); c.moveTo(x, s); c.lineTo(x + s, 0); c.stroke(); });
        return ctx.createPattern(tile, "repeat");
    }
    function strip(shares, n, widths) {
        const [ctx, w, h, ratio] = canvas("pool");
        const fills = CLASSES.map(([name]) => (name === "holes" ? hatch(ctx, ratio) : colour(name)));
        ctx.clearRect(0, 0, w, h);
        for (let i = 0; i < n; i++) {
            const x0 = Math.round(i * widths * w), x1 = Math.round(Math.min(1, (i + 1) * widths) * w);
            let y = h;
            for (let c = 0; c < CLASSES.length; c++) {
                const part = shares[i * CLASSES.length + c] * h;
                if (part > 0) {
                    ctx.fillStyle = fills[c];
                    ctx.fillRect(x0, y - part, Math.max(1, x1 - x0), part);
                    y -= part;
                }
            }
        }
    }
    function waterfall() {
        const each = Math.max(2, Math.min(8, Math.floor(200 / fall.length))); // few lines are drawn thicker
        const rows = Math.min(fall.length, Math.floor(200 / each));
        $("fall").style.height = rows * each + "px";
        const [ctx, w, h] = canvas("fall"), mix = CLASSES.map(([name]) => rgb(colour(name))), rest = rgb(colour("card"));
        ctx.clearRect(0, 0, w, h);
        for (let r = 0; r < rows; r++) {
            const {shares, n, widths} = fall[r];
            for (let i = 0; i < n; i++) {
                const x0 = Math.round(i * widths * w), x1 = Math.round(Math.min(1, (i + 1) * widths) * w), p = [0, 0, 0];
                let left = 1; // what moved before it was seen is nowhere
                for (let c = 0; c < CLASSES.length; c++) {
                    const s = shares[i * CLASSES.length + c];
                    for (let k = 0; k < 3; k++) { p[k] += s * mix[c][k]; }
                    left -= s;
                }
                ctx.fillStyle = "rgb(" + p.map((v, k) => Math.round(v + Math.max(0, left) * rest[k])).join(",") + ")";
                const y0 = Math.round(r * h / rows);
                ctx.fillRect(x0, y0, Math.max(1, x1 - x0), Math.round((r + 1) * h / rows) - y0);
            }
        }
        $("fall-span").textContent = rows > 1 ? "back to –" + time(fall[0].t - fall[rows - 1].t) : "";
    }
    function pool(d, fresh) {
        const p = d.pool, b = p.bytes, states = b.live_state + b.cached_state, pages = b.live_page + b.cached_page;
        const words = "States hold " + share(states, p.arena) + " of " + bytes(p.arena) + ", pages " +
            share(pages, p.arena) + "; holes " + share(b.holes, p.arena) + ", gap " + share(b.gap, p.arena) +
            ", pinned " + share(b.pinned, p.arena) + ", padding " + share(b.padding, p.arena) + "; " +
            bytes(p.promised) + " are promised.";
        $("pool-end").textContent = bytes(p.arena);
        $("pool-words").textContent = d.picture !== null && d.picture.n_bins === 0
            ? words + " This pool does not say where its units lie." : words;
        $("pool").setAttribute("aria-label", "The pool from its first byte to its last. " + words);
        $("fall").setAttribute("aria-label", "The pool as above, one line for each look at it, newest on top");
        fill($("pool-table"), null, CLASSES.map(([name, label]) => [(cell) => {
            if (cell.childNodes.length === 0) {
                make(cell, "span", {class: "swatch " + name, "aria-hidden": "true"});
                cell.appendChild(document.createTextNode(label));
            }
        }, bytes(b[name]), share(b[name], p.arena)]), "");
        fill($("unit-table"), null, [
            ["in use", int(p.page.used), int(p.state.used)], ["of them cached", int(p.page.cached), int(p.state.cached)],
            ["could be evicted", int(p.page.evictable), int(p.state.evictable)],
            ["evicted so far", int(p.page.evicted), int(p.state.evicted)],
            ["most at once", int(p.page.most), int(p.state.most)], ["bytes of one", bytes(p.page.bytes), bytes(p.state.bytes)]], "");
        if (d.picture === null || d.picture.n_bins === 0) { return; }
        const now = {shares: columns(p, d.picture), n: d.picture.n_bins, widths: d.picture.bin_bytes / p.arena,
            t: d.now_s};
        if (fresh) {
            fall.unshift(now);
            fall.length = Math.min(fall.length, 200);
        }
        strip(now.shares, now.n, now.widths);
        $("pool").dataset.step = d.picture.steps[1];
        waterfall();
    }

    // --- tiles and lists ---

    const tileCells = {};
    function tile(id, name, value, sub) {
        if (tileCells[id] === undefined) {
            const box = make($("tiles"), "div");
            make(box, "dt", {}, name);
            tileCells[id] = [make(box, "dd", {id: "n-" + id}), make(box, "dd", {class: "sub", id: "n-" + id + "-sub"})];
        }
        tileCells[id][0].textContent = value;
        tileCells[id][1].textContent = sub;
    }
    function tiles(d) {
        const h = history[history.length - 1], rows = d.picture === null ? null : d.picture.batch;
        const ended = d.finished;
        tile("waiting", "Waiting", int(d.queue.waiting), int(d.engine.short_page) + " times short of pages, " +
            int(d.engine.short_state) + " of states");
        tile("running", "Running", int(d.queue.running), int(d.engine.preemptions) + " preemptions");
        tile("batch", "Batch of the last step", int(d.queue.batch), rows === null ? "sequences" :
            "sequences, " + int(rows.decode_rows + rows.draft_rows + rows.prefill_rows) + " rows");
        tile("output", "Output tokens", int(d.tokens.output), h.output === null ? "" : short(h.output) + " per second");
        tile("prompt", "Prompt tokens computed", int(d.tokens.prompt), h.prompt === null ? "" : short(h.prompt) + " per second");
        tile("steps", "Steps", int(d.engine.steps), h.step === null ? "none just now" : time(h.step / 1e3) + " each");
        tile("ttft", "TTFT", ms(median(ended.map((r) => r.ttft_ms))), "median of the last " + ended.length);
        tile("tpot", "TPOT", ms(median(ended.map((r) => r.tpot_ms))), "median of the last " + ended.length);
        tile("reused", "Prompt tokens reused", share(d.tokens.cached, d.tokens.queried), share(d.tokens.lost, d.tokens.queried) +
            " lost for want of a state");
        tile("accepted", "Drafts accepted", share(d.spec.accepted, d.spec.verified), int(d.spec.accepted) + " of " +
            int(d.spec.verified));
    }
    const pair = (r) => (r.hit_page === 0 ? "–" : int(r.hit_page) + " / " + int(r.hit_state));
    function lists(d) {
        const p = d.picture || {running: [], waiting: []}, split = d.arms.length > 0;
        const head = (a) => (split ? a.concat("arm") : a);
        const row = (a, r) => (split ? a.concat(r.arm || "–") : a);
        fill($("run-table"), head(["request", "phase", "", "computed", "prompt", "output", "pages", "hit: pages / state", "preempted", "age"]),
            p.running.map((r) => row([int(r.n), r.paused ? r.state + ", paused" : r.state, (cell) => {
                const bar = cell.firstChild || make(cell, "progress", {"aria-label": "computed of prompt and longest output"});
                bar.max = r.prompt + r.max;
                bar.value = r.computed;
            }, int(r.computed), int(r.prompt), int(r.output) + " / " + int(r.max), int(r.pages), pair(r), int(r.preempted),
            time(r.age_s)], r)), "nobody");
        fill($("wait-table"), head(["request", "prompt", "output at most", "would hit: pages / state", "short of", "preempted", "age"]),
            p.waiting.map((r) => row([int(r.n), int(r.prompt), int(r.max), pair(r), r.short_of || "–", int(r.preempted),
                time(r.age_s)], r)), "nobody");
        $("run-more").textContent = d.queue.running > p.running.length && p.running.length >= 64
            ? "the " + p.running.length + " oldest of " + int(d.queue.running) : "";
        $("wait-more").textContent = d.queue.waiting > p.waiting.length && p.waiting.length >= 32
            ? "the " + p.waiting.length + " first of " + int(d.queue.waiting) : "";
        fill($("done-table"), head(["ended", "how", "prompt", "output", "hit: pages / state", "drafts: verified / accepted",
            "queue", "TTFT", "TPOT", "in all"]),
        d.finished.slice(-20).reverse().map((r) => row([int(r.n + 1), r.finish, int(r.prompt), int(r.output), pair(r),
            r.verified === 0 ? "–" : int(r.verified) + " / " + int(r.accepted), ms(r.queue_ms), ms(r.ttft_ms), ms(r.tpot_ms),
            ms(r.e2e_ms)], r)), "none yet");
    }

    // Of an experiment: each arm's own figures, and how its hits and drafts went.
    function arms(d) {
        $("arms").hidden = d.arms.length === 0;
        fill($("arm-table"), ["arm", "share", "overrides", "ended well", "refused", "failed", "TTFT", "TPOT", "in all",
            "prompt reused", "lost for want of a state", "drafts accepted", "preempted"],
        d.arms.map((a) => {
            const f = a.figures;
            return [a.name, fixed(a.share) + " %", a.overrides || "–", int(f.ok), int(f.refused), int(f.error), ms(f.ttft_ms),
                ms(f.tpot_ms), ms(f.e2e_ms), share(f.reused_tokens, f.prompt_tokens), share(f.lost_tokens, f.prompt_tokens),
                share(f.accepted, f.verified), int(f.preemptions)];
        }), "none");
    }

    // --- a sample ---

    // What the charts keep; rates are over the time since the sample before, null without one.
    function sample(d, before) {
        const dt = before === null ? 0 : d.now_s - before.now_s;
        const rate = (get) => (dt > 0 ? Math.max(0, get(d) - get(before)) / dt : null);
        const steps = before === null ? 0 : d.engine.steps - before.engine.steps;
        const each = (get) => (steps > 0 ? Math.max(0, get(d) - get(before)) / steps * 1e3 : null);
        const rows = d.picture === null ? null : d.picture.batch;
        const draft = each((z) => z.engine.draft_s), commit = each((z) => z.engine.commit_s);
        const exec = each((z) => z.engine.step_s), over = each((z) => z.engine.overhead_s);
        return {t: d.now_s, waiting: d.queue.waiting, running: d.queue.running,
            decode: rows && rows.decode_rows, drafts: rows && rows.draft_rows, prefill: rows && rows.prefill_rows,
            output: rate((z) => z.tokens.output), prompt: rate((z) => z.tokens.prompt), reused: rate((z) => z.tokens.reused),
            step: exec === null ? null : exec + over, draft, commit, over,
            rest: exec === null ? null : Math.max(0, exec - draft - commit)};
    }
    function show(d, fresh) {
        tiles(d);
        pool(d, fresh);
        overTime("c-queue", [["running", (h) => h.running, "s1"], ["waiting", (h) => h.waiting, "s2"]], "", false, "Requests");
        overTime("c-batch", [["prefill", (h) => h.prefill, "f1"], ["decode", (h) => h.decode, "f3"],
            ["drafts", (h) => h.drafts, "f4"]], "", true, "Rows of the last step");
        overTime("c-rate", [["output", (h) => h.output, "s1"], ["prompt computed", (h) => h.prompt, "s2"],
            ["prompt reused", (h) => h.reused, "s3"]], "", false, "Tokens per second");
        overTime("c-step", [["forward pass", (h) => h.rest, "f1"], ["drafting", (h) => h.draft, "f4"],
            ["commit", (h) => h.commit, "f3"], ["engine", (h) => h.over, "f2"]], " ms", true, "Mean time of a step");
        hits(d);
        acceptance(d.spec);
        buckets("c-ttft", d.times.ttft, "Time to first token");
        buckets("c-tpot", d.times.tpot, "Time per output token");
        arms(d);
        lists(d);
        $("foot").textContent = "kedge " + d.version + ", up " + time(d.uptime_s) + ". " + (d.cost.pictures === 0 ? "" :
            int(d.cost.pictures) + " pictures took the engine " + time(d.cost.seconds) + " in all, at most " +
            time(d.cost.most_s) + " after a step.");
    }

    // --- asking ---

    function say(state, text) {
        const e = $("status");
        e.dataset.state = state;
        if (e.textContent !== text) { e.textContent = text; }
    }
    async function ask(path) {
        const headers = key === "" ? {} : {Authorization: "Bearer " + key};
        const stop = new AbortController(), limit = setTimeout(() => stop.abort(), 10000);
        try {
            const r = await fetch(path, {headers, cache: "no-store", credentials: "omit", signal: stop.signal});
            return [r.status, await r.json()];
        } finally {
            clearTimeout(limit);
        }
    }
    async function plugins() {
        try {
            const [status, p] = await ask("admin/plugins");
            if (status === 200) {
                $("plugins").textContent = ["exec", "pool", "sched", "spec", "comm"].filter((k) => p.active[k] !== undefined)
                    .map((k) => k + " " + p.active[k]).join(" · ");
            }
        } catch (e) {
            $("plugins").textContent = "";
        }
    }
    function wantKey(wrong) {
        const first = $("key").hidden;
        $("main").hidden = true;
        $("key").hidden = false;
        $("key-wrong").textContent = wrong ? "That was not the key." : "";
        say("wait", "waiting for the key");
        if (first) { $("key-text").focus(); }
    }
    function refused(text) {
        $("main").hidden = true;
        $("refused").hidden = false;
        $("refused").textContent = text;
        say("bad", "refused");
    }
    function took(d) {
        const fresh = d.picture !== null && (last === null || last.picture === null ||
            d.picture.serial !== last.picture.serial);
        if (last !== null && (d.engine.steps < last.engine.steps || d.n_finished < last.n_finished)) {
            history.length = fall.length = 0; // another server now
            last = null;
        }
        if (last === null) { plugins(); }
        quiet = last !== null && d.engine.steps === last.engine.steps && d.queue.live === last.queue.live ? quiet + 1 : 0;
        history.push(sample(d, last));
        if (history.length > KEEP) { history.shift(); }
        last = shown = d;
        $("model").textContent = d.model;
        document.title = d.model + " · kedge";
        $("key").hidden = $("refused").hidden = true;
        $("main").hidden = false;
        say(d.lost ? "bad" : "live", d.lost ? "the backend is lost" : "live");
        show(d, fresh);
        // The first picture is made because of the first look; a server at rest is looked at less often.
        return d.picture === null ? 250 : quiet > 20 ? 3000 : 1000;
    }
    async function poll() {
        let next = 0;
        try {
            const [status, d] = await ask("admin/live");
            if (status === 200) {
                failed = 0;
                next = took(d);
            } else if (status === 401) {
                wantKey(key !== "");
                key = "";
            } else if (status === 403 || status === 404) {
                refused(d.error.message);
            } else {
                throw new Error(d.error.message);
            }
        } catch (e) {
            failed++;
            next = Math.min(30, Math.pow(2, failed - 1)) * 1000;
            say("bad", "no answer; next try in " + next / 1000 + " s");
        }
        schedule(next);
    }
    function schedule(ms_) {
        clearTimeout(timer);
        timer = ms_ > 0 && !paused && !document.hidden ? setTimeout(poll, ms_) : 0;
    }

    $("pause").addEventListener("click", () => {
        paused = !paused;
        $("pause").setAttribute("aria-pressed", String(paused));
        if (paused) {
            clearTimeout(timer);
            say("wait", "paused");
        } else {
            poll();
        }
    });
    $("key").addEventListener("submit", (e) => {
        e.preventDefault();
        key = $("key-text").value;
        $("key-text").value = "";
        poll();
    });
    document.addEventListener("visibilitychange", () => {
        if (!document.hidden && !paused && $("key").hidden && $("refused").hidden) { poll(); }
    });
    const again = () => { if (shown !== null) { show(shown, false); } };
    window.addEventListener("resize", again);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    poll();
})();
