/* Replays in processes of their own, for the commands that compare them, and the files they leave.
 */
#ifndef KEDGE_CORE_RUNS_H
#define KEDGE_CORE_RUNS_H

#include <kedge/types.h>

#include <sys/types.h>

#define KG_RUNS_PATH 64 /* bytes of a folder's name */

/*
 * Starts this program with other words (a NULL behind them), its standard output thrown away, its
 * standard error in the file `log`. Every one started must be waited for. KG_EIO.
 */
KG_CHECKED int kg_runs_start(const char *const words[], const char *log, pid_t *pid,
                             struct kg_error *err);
/* 1 and what waitpid says in *status when it ended, 0 while it runs. wait: comes back at the end
 * only. Kills it once kg_runs_told. */
int kg_runs_poll(pid_t pid, int wait, int *status);
/* KG_OK when it ended well; else KG_ECONFIG (bad configuration) or KG_EIO, and the text names
 * `what` and how it ended. */
int kg_runs_verdict(int status, const char *what, struct kg_error *err);
/* Copies the beginning of a log to standard error. */
void kg_runs_show_log(const char *log);
/* The first line of a log that tells why a run failed, without "kedge: "; "" for none. */
void kg_runs_why(const char *log, char *text, size_t n);

/* A folder of its own under $TMPDIR or /tmp; path[0] is NUL after a failure. KG_EIO. While it is
 * there SIGINT, SIGTERM and SIGHUP are held back. */
KG_CHECKED int kg_runs_folder(const char *name, char path[KG_RUNS_PATH], struct kg_error *err);
/* 1 when this program was told to end (one of those signals): no further runs. */
int kg_runs_told(void);
/* Removes it and the files in it, nothing for ""; then a signal that was held back does what it
 * does: the program may end here. */
void kg_runs_drop(const char *path);

#endif
