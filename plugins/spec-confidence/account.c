#include "account.h"

static void fill(struct account *a, double ns, double plain_ns)
{
    double most = ACCOUNT_MOST * plain_ns;

    a->left_ns += ns;
    a->left_ns = a->left_ns < most ? a->left_ns : most;
}

void account_pass(struct account *a, double ns, double plain_ns)
{
    if (!a->open) {
        a->open = 1;
        a->left_ns = ACCOUNT_START * plain_ns;
    }
    fill(a, ACCOUNT_SHARE * ns, plain_ns);
}

void account_round(struct account *a, double loss_ns, double plain_ns)
{
    fill(a, -loss_ns, plain_ns);
}

int account_allows(const struct account *a, double cost_ns)
{
    return a->left_ns >= cost_ns;
}
