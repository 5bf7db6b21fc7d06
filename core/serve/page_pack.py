"""Puts the page at / together: page_pack.py HTML CSS JS OUT.c

Style and script go into the document in place of @STYLE@ and @SCRIPT@, and the policy that is sent
with it names the hashes of just these two, so that nothing else runs, and nothing is loaded from
anywhere.
"""
import base64
import hashlib
import sys


def digest(text):
    return "'sha256-%s'" % base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def literal(data):
    rows = [data[i:i + 20] for i in range(0, len(data), 20)]
    return "\n".join("    " + "".join("%d," % b for b in row) for row in rows)


def main():
    html, css, js = (open(path, encoding="utf-8").read() for path in sys.argv[1:4])
    assert html.count("@STYLE@") == 1 and html.count("@SCRIPT@") == 1, "both places, once each"
    assert "</style" not in css and "</script" not in js, "would end its element"
    policy = "; ".join([
        "default-src 'none'",
        "script-src " + digest(js),
        "style-src " + digest(css),
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ])
    headers = "".join(line + "\\r\\n" for line in [
        "Content-Security-Policy: " + policy,
        "X-Content-Type-Options: nosniff",
        "Referrer-Policy: no-referrer",
        "Cache-Control: no-cache",
    ])
    page = html.replace("@STYLE@", css).replace("@SCRIPT@", js).encode()
    with open(sys.argv[4], "w", encoding="utf-8") as out:
        out.write("/* Made from page.html, page.css and page.js. */\n"
                  '#include "serve/page.h"\n\n'
                  "const char kg_page_html[] = {\n%s\n};\n"
                  "const size_t kg_page_html_bytes = sizeof(kg_page_html);\n"
                  'const char kg_page_headers[] = "%s";\n' % (literal(page), headers))


main()
