/* The page of kedge ab: pieces its plots share. All lengths are px of a drawing KG_HTML_WIDTH wide.
 */
#ifndef KEDGE_EXPERIMENT_AB_HTML_INT_H
#define KEDGE_EXPERIMENT_AB_HTML_INT_H

#include "experiment/ab.h"

/* Of a plot: the frame, and its margins left, right, above and below. */
#define KG_HTML_WIDTH 720.0
#define KG_HTML_HEIGHT 220.0
#define KG_HTML_LEFT 60.0
#define KG_HTML_RIGHT 20.0
#define KG_HTML_ABOVE 10.0
#define KG_HTML_BELOW 30.0
#define KG_HTML_WIDE (KG_HTML_WIDTH - KG_HTML_LEFT - KG_HTML_RIGHT)
#define KG_HTML_TALL (KG_HTML_HEIGHT - KG_HTML_ABOVE - KG_HTML_BELOW)
/* Class of the lines and of the areas of an arm. */
#define KG_HTML_ARM(k) ((k) == 0 ? "a" : "b")
#define KG_HTML_ARM_AREA(k) ((k) == 0 ? "fa" : "fb")

/* The text with what HTML would take for itself written as entities; also in attributes. */
void kg_html_text(struct kg_buf *b, const char *s);
void kg_html_label(struct kg_buf *b, double x, double y, const char *anchor, const char *text);
void kg_html_line(struct kg_buf *b, const char *class, double x0, double y0, double x1, double y1);
/* A heading and a drawing that says in words (`label`) what it shows; and its end. */
void kg_html_open(struct kg_buf *b, const char *heading, double height, const char *label);
void kg_html_close(struct kg_buf *b);
double kg_html_clip(double v, double lo, double hi);
/* The least of 1, 2, 4, 6, 8, 10 times a power of ten that is at least v; 1 unless v > 0. */
double kg_html_ceiling(double v);
/* Five lines from 0 to top, each with its value and the unit behind it. */
void kg_html_levels(struct kg_buf *b, double top, const char *unit);
/* Times from 0 to span_s at round distances, below the frame. */
void kg_html_times(struct kg_buf *b, double span_s);

/* ab_html_plots.c. Each appends headings and drawings, nothing where there is nothing to draw. */
void kg_html_distributions(struct kg_buf *b, const struct kg_ab_report *r);
void kg_html_load(struct kg_buf *b, const struct kg_ab_report *r);
void kg_html_pools(struct kg_buf *b, const struct kg_ab_report *r);
/* ab_html_steps.c. The same. */
void kg_html_steps(struct kg_buf *b, const struct kg_ab_report *r);
void kg_html_parts(struct kg_buf *b, const struct kg_ab_report *r);
void kg_html_drafts(struct kg_buf *b, const struct kg_ab_report *r);

#endif
