/* What main.c needs of a board. */
#ifndef BOARD_H
#define BOARD_H

#include <stddef.h>
#include <stdint.h>

/* Sends bytes over the UART, and waits until they are on their way. */
void board_print(const char *bytes, size_t count);

/* Interrupts off; returns whether they were on. And as they were before. */
size_t board_enter(void);
void board_leave(size_t state);

/* Starts an interrupt that calls on_interrupt again and again, until it is stopped. */
void board_start_interrupts(void);
void board_stop_interrupts(void);
void on_interrupt(void);

/* As malloc, annotated with a stack that begins at the caller: by cairn, or where the board has unwind tables, by the board. */
#ifdef BOARD_UNWINDS
void *board_malloc(size_t size);
#else
#define board_malloc cairn_annotated_malloc
#endif

/* The return addresses further out than pc, for cairn: see walk_function in cairn_heap.h. */
size_t board_walk(size_t pc, size_t fp, size_t *addresses, size_t room);

/* The program; 0 is success. Called by the board's start. */
int device_main(void);

#endif
