// Prints the program's own cost at its end. It is loaded into the program, because a measurement from outside sees only the sum of program and tool.
// A line: seconds of processor, peak of resident memory in KiB, of it without the pages of files, name.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

extern char *program_invocation_short_name;

// In KiB, at this moment, without stdio: the tools watch what that allocates.
static long without_files(void)
{
    char text[4096];
    const int file = open("/proc/self/status", O_RDONLY);
    const ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    text[length > 0 ? length : 0] = 0;
    const char *line = strstr(text, "RssAnon:");
    return line == NULL ? 0 : atol(line + strlen("RssAnon:"));
}

__attribute__((destructor)) static void tell(void)
{
    const char *path = getenv("CAIRN_BENCH_PROBE");
    struct timespec used;
    struct rusage usage;
    char line[400];
    if (path == NULL || clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) != 0 || getrusage(RUSAGE_SELF, &usage) != 0)
        return;
    const int length = snprintf(line, sizeof line, "%ld.%09ld %ld %ld %.200s\n", (long)used.tv_sec, used.tv_nsec,
                                usage.ru_maxrss, without_files(), program_invocation_short_name);
    const int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (file >= 0) {
        if (write(file, line, (size_t)length) < 0)
            perror(path);
        close(file);
    }
}
