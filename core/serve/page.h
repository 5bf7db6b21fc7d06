/*
 * The page at / for people, and what it draws: GET /admin/live. The page itself (page.html,
 * page.css, page.js, put together at build time) holds no data and needs nothing from elsewhere;
 * the numbers are for whoever may ask /admin. Nothing of a prompt, an answer or a client is in
 * them. Loop thread.
 */
#ifndef KEDGE_SERVE_PAGE_H
#define KEDGE_SERVE_PAGE_H

#include "serve/http.h"

struct kg_serve;
struct kg_event;

/* The bytes of the page, and the header lines it is sent with; made at build time. */
extern const char kg_page_html[];
extern const size_t kg_page_html_bytes;
extern const char kg_page_headers[];

/* What ended lately, and when the engine was last asked for a picture. KG_ENOMEM. */
KG_CHECKED int kg_page_open(struct kg_serve *s);
void kg_page_close(struct kg_serve *s);
/* Notes a sequence that ended; e is its DONE event, arm lives as long as the server. */
void kg_page_done(struct kg_serve *s, const struct kg_event *e, const char *arm);

/*
 * Whether a request that /admin would answer may also see the numbers by way of a browser: with the
 * key, or when it was sent to an address of this machine (a name that someone else pointed here is
 * refused: a page of theirs could read the answer).
 */
int kg_page_allowed(const struct kg_serve *s, struct kg_http_req *req, bool key_is_good,
                    struct kg_api_error *err);
/* Each answers the request. */
void kg_page_get(struct kg_http_req *req);
void kg_page_live(struct kg_serve *s, struct kg_http_req *req);

#endif
