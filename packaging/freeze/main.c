/* Starts the interpreter that is linked into the executable, with nothing but what is in it.
 *
 * Compiled modules are registered from linked.h, Python modules come from the table in frozen.c
 * (collect.py); the one called __main__ is boot.py. No file is looked for, no environment variable
 * of Python is read. Exit codes are those of sys.exit in __main__.
 *
 * With RECORDER defined it runs the program on standard input instead, for record.py.
 */

#include <Python.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MODULE(name, init) PyMODINIT_FUNC init(void);
#include "linked.h"
#undef MODULE

extern const struct _frozen lavinmq_frozen[];

static void check(PyStatus status) {
    if (PyStatus_Exception(status)) {
        Py_ExitStatusException(status);
    }
}

/* The path of this program; what it was called as where there is no /proc. */
static void find_program(const char *called, char *path) {
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);
    if (length < 0) {
        snprintf(path, PATH_MAX, "%s", called ? called : "lavinmq");
    } else {
        path[length] = '\0';
    }
}

static void configure(int argc, char **argv) {
    static char program[PATH_MAX];
    PyPreConfig before;
    PyPreConfig_InitIsolatedConfig(&before);
    before.utf8_mode = 1;
    check(Py_PreInitialize(&before));

    PyConfig config;
    PyConfig_InitIsolatedConfig(&config);
    /* SIGINT raises KeyboardInterrupt and a closed pipe is an error, not the end. */
    config.install_signal_handlers = 1;
    config.parse_argv = 0;
    config.site_import = 0;
    config.write_bytecode = 0;
    config.pathconfig_warnings = 0;
    config.code_debug_ranges = 0;
    config.use_frozen_modules = 1;
    config.module_search_paths_set = 1; /* to none */
    find_program(argc > 0 ? argv[0] : NULL, program);
    wchar_t **fixed[] = {
        &config.home,        &config.prefix,           &config.base_prefix,
        &config.exec_prefix, &config.base_exec_prefix,
    };
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        check(PyConfig_SetString(&config, fixed[i], L"/"));
    }
    check(PyConfig_SetBytesString(&config, &config.program_name, program));
    check(PyConfig_SetBytesString(&config, &config.executable, program));
    check(PyConfig_SetBytesString(&config, &config.base_executable, program));
    check(PyConfig_SetBytesArgv(&config, argc, argv));
    check(Py_InitializeFromConfig(&config));
    PyConfig_Clear(&config);
}

int main(int argc, char **argv) {
#define MODULE(name, init) PyImport_AppendInittab(name, init);
#include "linked.h"
#undef MODULE
    PyImport_FrozenModules = lavinmq_frozen;
    configure(argc, argv);
    int status = 0;
#ifdef RECORDER
    return PyRun_SimpleFile(stdin, "record.py") || Py_FinalizeEx() < 0;
#endif
    switch (PyImport_ImportFrozenModule("__main__")) {
        case 1:
            break;
        case 0:
            fputs("lavinmq: the executable holds no program\n", stderr);
            status = 1;
            break;
        default:
            PyErr_Print(); /* ends the process with its code for SystemExit */
            status = 1;
    }
    return Py_FinalizeEx() < 0 ? 120 : status;
}
