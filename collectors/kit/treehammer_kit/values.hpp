// Checksum of values: one running 64-bit hash per leaf, fed entry by entry with the number of values
// and the values.  It depends on content alone: not on layout, compression, format, file or release.
#ifndef TREEHAMMER_VALUES
#define TREEHAMMER_VALUES

#include "events.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

namespace treehammer {

inline void Feed(uint64_t &hash, uint64_t value)
{
   hash = Mix(hash ^ value) + 0x9E3779B97F4A7C15ull;
}

/// Integers by value, whatever their width in memory; floating-point numbers by their bits.
template <typename T>
void FeedValue(uint64_t &hash, const T &value)
{
   if constexpr (std::is_same_v<T, float>) {
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      Feed(hash, bits);
   } else if constexpr (std::is_same_v<T, double>) {
      uint64_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      Feed(hash, bits);
   } else if constexpr (std::is_integral_v<T>) {
      Feed(hash, uint64_t(int64_t(value)));
   } else { // std::string and vectors, also of each other
      Feed(hash, value.size());
      for (const auto &item : value)
         FeedValue<typename T::value_type>(hash, item);
   }
}

/// A number, or contiguous numbers.
template <typename T>
void FeedNumbers(uint64_t &hash, const T *values, std::size_t length)
{
   Feed(hash, length);
   for (std::size_t i = 0; i < length; ++i)
      FeedValue(hash, values[i]);
}

/// The kind of values, common to both formats where they name a type differently.
template <typename T>
const char *KindOf()
{
   if constexpr (std::is_same_v<T, float>)
      return "float";
   else if constexpr (std::is_same_v<T, double>)
      return "double";
   else if constexpr (std::is_integral_v<T>)
      return "integer";
   else if constexpr (std::is_same_v<T, std::string>)
      return "text";
   else
      return KindOf<typename T::value_type>();
}

/// One leaf covered by the checksum.  Its type is known to a plain function alone: the JIT needs much
/// longer for a std::function of each type.
struct CoveredLeaf {
   std::string name, kind;
   std::function<const void *()> locate; // address of what holds the current entry's value
   void (*feed)(uint64_t &hash, const void *holder, std::size_t length);
   std::size_t length = 0; // where it is the same for all entries
   uint64_t hash = 0;
};

/// The leaves of one file, and their hashes, which continue across files.
class ValueHashes {
   std::map<std::string, uint64_t> fHashes;

protected:
   std::vector<CoveredLeaf> fLeaves;

   void Clear()
   {
      fLeaves.clear();
      uncovered.clear();
   }
   void Begin()
   {
      for (auto &leaf : fLeaves)
         leaf.hash = fHashes[leaf.name + " " + leaf.kind];
   }
   void FeedEntry()
   {
      for (auto &leaf : fLeaves)
         leaf.feed(leaf.hash, leaf.locate(), leaf.length);
      ++entries;
   }
   void End()
   {
      for (auto &leaf : fLeaves)
         fHashes[leaf.name + " " + leaf.kind] = leaf.hash;
   }

   bool IsLeftOut(const std::string &name) const
   {
      return std::find(left_out.begin(), left_out.end(), name) != left_out.end();
   }

public:
   std::vector<std::string> uncovered;
   std::vector<std::string> left_out;   // top-level branches that are neither read nor counted
   long long entries = 0, branches = 0; // branches: top-level ones of the last file
   std::string message;

   /// "name kind hash" of every covered leaf, in alphabetical order.  Names in an RNTuple cannot
   /// contain a dot and its importer writes an underscore; the same is done here.
   std::vector<std::string> Lines() const
   {
      std::vector<std::string> lines;
      for (const auto &item : fHashes) {
         char text[17];
         std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(item.second));
         lines.push_back(item.first + " " + text);
         std::replace(lines.back().begin(), lines.back().end(), '.', '_');
      }
      std::sort(lines.begin(), lines.end());
      return lines;
   }
};

} // namespace treehammer
#endif
