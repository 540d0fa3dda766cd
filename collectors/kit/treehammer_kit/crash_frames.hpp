// C++ frames of a crash, on standard error. ROOT's own handler starts a debugger for them, which
// takes long on a node and is not installed on most.
#ifndef TREEHAMMER_CRASH_FRAMES
#define TREEHAMMER_CRASH_FRAMES

#include <csignal>
#include <dlfcn.h>
#include <execinfo.h>
#include <initializer_list>
#include <ucontext.h>
#include <unistd.h>

namespace treehammer {

static struct sigaction gPreviousActions[NSIG];

/// Find the functions of a crash, innermost first.
static int FindFrames(const void *context, void **frames, int size)
{
#ifdef __x86_64__
   Dl_info info;
   const auto &registers = ((const ucontext_t *)context)->uc_mcontext.gregs;
   if (!dladdr((void *)registers[REG_RIP], &info)) {
      // A call through a damaged object ends where no code is, and nothing can be unwound from
      // there. Its caller and theirs are among the addresses on top of the stack.
      auto top = (void *const *)registers[REG_RSP];
      int found = 0;
      for (int word = 0; word < 256 && found < size; ++word)
         if (top[word] && dladdr(top[word], &info) && info.dli_sname)
            frames[found++] = top[word];
      return found;
   }
#endif
   return backtrace(frames, size);
}

static void PrintFrames(int number, siginfo_t *, void *context)
{
   // The instruction fails again after the return, or below, which calls the previous handler.
   sigaction(number, &gPreviousActions[number], nullptr);
   static const char title[] = "C++ frames:\n";
   if (write(2, title, sizeof(title) - 1) > 0) {
      void *frames[48];
      backtrace_symbols_fd(frames, FindFrames(context, frames, 48), 2);
   }
}

/// Print the C++ frames of a crash before the handlers that are installed now.
static void PrintFramesOfCrashes()
{
   static bool installed = false;
   if (installed) // this handler would become its own predecessor
      return;
   installed = true;
   void *frame[1];
   backtrace(frame, 1); // loads a library, which a signal handler must not
   struct sigaction action = {};
   action.sa_sigaction = PrintFrames;
   action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
   for (int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE})
      sigaction(number, &action, &gPreviousActions[number]);
}

} // namespace treehammer

#endif
