// An event loop that stops between two entries and continues later.
#ifndef TREEHAMMER_GATED_LOOP
#define TREEHAMMER_GATED_LOOP

// ROOT is precompiled with <sys/cdefs.h> of an older C library, which may lack a macro of <sys/mman.h>.
#include <sys/cdefs.h>
#ifndef __attr_access_none
#define __attr_access_none(argument)
#endif
#include <sys/mman.h>
#include <ucontext.h>

#include <cstddef>
#include <exception>
#include <functional>
#include <new>
#include <stdexcept>
#include <utility>

namespace treehammer {

/// A loop that owns its control flow, run in turns by the thread that has it: the loop has a stack of
/// its own, and calls Pass() after each entry, which switches back to the caller at the end of a turn.
class GatedLoop {
   struct Abandoned : std::runtime_error {
      Abandoned() : std::runtime_error("the worker abandoned this pass") {}
   };

   /// As large as a main thread's; the kernel provides its pages when they are used.
   static constexpr std::size_t kStackBytes = 8 << 20;
   static constexpr long long kNowhere = -1;

   std::function<void()> fLoop;
   void *fStack;
   ucontext_t fCaller{}, fInside{};
   long long fEntries, fDone = 0, fStop = kNowhere;
   bool fStarted = false, fEnded = false, fAbandoned = false;
   std::exception_ptr fError;

   static GatedLoop *&Starting()
   {
      static GatedLoop *loop = nullptr;
      return loop;
   }

   static void Enter() { Starting()->RunLoop(); }

   void RunLoop()
   {
      try {
         fLoop();
      } catch (...) { // the caller's stack is another one: exceptions cannot reach it by themselves
         fError = std::current_exception();
      }
      fEnded = true;
      swapcontext(&fInside, &fCaller);
   }

   void Continue()
   {
      fStarted = true;
      Starting() = this;
      swapcontext(&fCaller, &fInside);
   }

public:
   /// A loop over `entries` entries, which RunUntil starts.
   GatedLoop(std::function<void()> loop, long long entries) : fLoop(std::move(loop)), fEntries(entries)
   {
      const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK;
      fStack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, flags, -1, 0);
      if (fStack == MAP_FAILED)
         throw std::bad_alloc();
      getcontext(&fInside);
      fInside.uc_stack.ss_sp = fStack;
      fInside.uc_stack.ss_size = kStackBytes;
      fInside.uc_link = nullptr;
      makecontext(&fInside, &GatedLoop::Enter, 0);
   }
   GatedLoop(const GatedLoop &) = delete;
   GatedLoop &operator=(const GatedLoop &) = delete;

   /// End an unfinished loop by an exception in Pass(), so that its objects are destroyed.
   ~GatedLoop()
   {
      fAbandoned = true;
      if (fStarted && !fEnded)
         Continue();
      munmap(fStack, kStackBytes);
   }

   /// Count an entry; the loop calls it after each one.
   void Pass()
   {
      if (++fDone != fStop)
         return;
      swapcontext(&fInside, &fCaller);
      if (fAbandoned)
         throw Abandoned();
   }

   /// Continue until `last` entries have been read; after the last entry, to the loop's own end.
   void RunUntil(long long last)
   {
      fStop = last < fEntries ? last : kNowhere;
      if (!fEnded && fDone < last)
         Continue();
      if (fError)
         std::rethrow_exception(std::exchange(fError, nullptr));
   }

   /// Entries read so far.
   long long Done() const { return fDone; }
};

} // namespace treehammer
#endif
