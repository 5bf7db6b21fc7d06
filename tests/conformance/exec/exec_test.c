/* Runs the backend cases: exec_test NAME [OPTIONS [MODEL]]. */
#include "xc.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    struct CMUnitTest tests[40];
    size_t n = 0;

#ifdef XC_ON_DEVICE /* a build for machines with a GPU takes no arguments */
    static char *device[] = {"gpu_backend_test", "cuda", "math=exact", XC_ON_DEVICE};

    if (argc < 2) {
        argc = 4;
        argv = device;
    }
#endif
    if (argc < 2) {
        (void)fputs("usage: exec_test NAME [OPTIONS [MODEL]]\n", stderr);
        return 2;
    }
    xc_name = argv[1];
    xc_options = argc > 2 ? argv[2] : "";
    xc_model = argc > 3 ? argv[3] : "";
#ifdef XC_ON_DEVICE
    if (xc_is_absent())
        return 77;
#endif
    for (const struct CMUnitTest *t = xc_path_cases; t->name != NULL; t++) {
        tests[n++] = *t;
    }
    for (const struct CMUnitTest *t = xc_contract_cases; t->name != NULL; t++) {
        tests[n++] = *t;
    }
    return _cmocka_run_group_tests(xc_name, tests, n, NULL, NULL);
}
