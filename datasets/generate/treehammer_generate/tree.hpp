// Writes a tree whose bytes depend on its plan alone.
//
// Bytes must agree between machines, runs and ROOT releases, so values come from integers only:
// splitmix64, no libm, no floating-point arithmetic; floats are assembled bit by bit.

#pragma once

#include <TFile.h>
#include <TTree.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace treehammer {

/// splitmix64 (Steele, Lea, Flood 2014): the whole state is one counter.
class Random {
public:
   explicit Random(std::uint64_t state) : fState(state) {}
   std::uint64_t next()
   {
      std::uint64_t z = (fState += 0x9E3779B97F4A7C15ull);
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
      return z ^ (z >> 31);
   }

private:
   std::uint64_t fState;
};

/// A stream of its own for every branch and event: no branch depends on which others exist.
inline Random stream(std::uint64_t seed, std::uint64_t event)
{
   return Random(seed ^ (0xD1B54A32D192ED03ull * (event + 1)));
}

/// What the values of one branch look like.
struct Content {
   std::uint64_t seed;
   unsigned bits;      ///< random bits of a value that is not zero (of the mantissa, for floats)
   unsigned zeros;     ///< how many of 65536 values are zero
   std::uint64_t hold; ///< if not 0, no random values: each event/hold, counted from 1
};

/// Assembles a float: `bits` random mantissa bits, a falling spectrum of exponents, a sign.
template <class T, class Word, int Mantissa, Word Bias>
T assemble(std::uint64_t random, unsigned bits)
{
   const Word keep = bits == 0 ? 0 : (~Word(0) >> (8 * sizeof(Word) - bits)) << (Mantissa - bits);
   const Word exponent = Bias + Word(__builtin_ctzll((random >> 58) | 0x20u));
   const Word sign = Word((random >> 57) & 1u) << (8 * sizeof(Word) - 1);
   const Word word = sign | (exponent << Mantissa) | (Word(random) & keep);
   T value;
   std::memcpy(&value, &word, sizeof value);
   return value;
}

template <class T>
T draw(std::uint64_t random, unsigned bits)
{
   return static_cast<T>(bits == 0 ? 0 : random >> (64 - bits));
}
template <>
inline bool draw<bool>(std::uint64_t, unsigned)
{
   return true;
}
template <>
inline float draw<float>(std::uint64_t random, unsigned bits)
{
   return assemble<float, std::uint32_t, 23, 127>(random, bits);
}
template <>
inline double draw<double>(std::uint64_t random, unsigned bits)
{
   return assemble<double, std::uint64_t, 52, 1023>(random, bits);
}

/// One branch and the memory it is filled from.
class Column {
public:
   virtual ~Column() = default;
   virtual void fill(std::uint64_t event) = 0;
};

/// How many objects of a collection an event has: 0 to 2*mean, most often mean.
class Counter final : public Column {
public:
   Counter(std::uint64_t seed, int mean) : fSeed(seed), fMean(mean) {}
   void fill(std::uint64_t event) override
   {
      auto random = stream(fSeed, event);
      const auto span = static_cast<std::uint64_t>(fMean) + 1;
      const auto first = random.next() % span;
      value = static_cast<int>(first + random.next() % span);
   }
   int capacity() const { return 2 * fMean; }
   int value = 0;

private:
   std::uint64_t fSeed;
   int fMean;
};

template <class T>
void fillValues(T *values, int n, const Content &content, std::uint64_t event)
{
   if (content.hold != 0) {
      std::fill(values, values + n, static_cast<T>(event / content.hold + 1));
      return;
   }
   auto choice = stream(content.seed, event);
   for (int i = 0; i < n; ++i) {
      // Two draws: the bits that choose zero must not be those that make the value.
      const bool zero = (choice.next() & 0xFFFF) < content.zeros;
      const auto random = choice.next();
      values[i] = zero ? T(0) : draw<T>(random, content.bits);
   }
}

/// A scalar, a fixed array, or (with a counter) an array of an event's own length.
template <class T>
class Array final : public Column {
public:
   Array(const Content &content, int length, const Counter *counter)
      : values(new T[length]()), fContent(content), fLength(length), fCounter(counter)
   {
   }
   void fill(std::uint64_t event) override
   {
      fillValues(values.get(), fCounter ? fCounter->value : fLength, fContent, event);
   }
   std::unique_ptr<T[]> values;

private:
   Content fContent;
   int fLength;
   const Counter *fCounter;
};

template <class T>
class Vector final : public Column {
public:
   Vector(const Content &content, const Counter &counter) : fContent(content), fCounter(counter) {}
   void fill(std::uint64_t event) override
   {
      values.resize(fCounter.value);
      fillValues(values.data(), fCounter.value, fContent, event);
   }
   std::vector<T> values;
   std::vector<T> *address = &values;

private:
   Content fContent;
   const Counter &fCounter;
};

inline std::unique_ptr<TFile> create(const std::string &url, int compression)
{
   std::unique_ptr<TFile> file(TFile::Open(url.c_str(), "RECREATE", "", compression));
   if (!file || file->IsZombie())
      throw std::runtime_error("cannot be created");
   return file;
}

inline void checkWritten(const TFile &file)
{
   if (file.TestBit(TFile::kWriteError))
      throw std::runtime_error("cannot be written");
}

inline void finish(TFile &file)
{
   file.Write("", TObject::kOverwrite);
   checkWritten(file);
   file.Close();
   checkWritten(file);
}

/// One tree in one new file.
class TreeWriter {
public:
   TreeWriter(const std::string &url, const std::string &tree, int compression, Long64_t cluster)
      : fFile(create(url, compression))
   {
      fTree = new TTree(tree.c_str(), "treehammer reference data"); // owned by the file
      fTree->SetAutoSave(0); // no intermediate copies of the tree's own record
      fTree->SetAutoFlush(cluster);
   }

   /// A collection and its counter branch; its branches all have the counted length.
   void collection(const std::string &counter, std::uint64_t seed, int mean)
   {
      auto column = std::make_unique<Counter>(seed, mean);
      fTree->Branch(counter.c_str(), &column->value, (counter + "/I").c_str());
      fCounters[counter] = column.get();
      fColumns.push_back(std::move(column));
   }

   /// A branch of `type` F, D, I, i, L or O; `counter` '' means `length` values an event.
   void branch(const std::string &name, const std::string &type, bool vector, int length,
               const std::string &counter, std::uint64_t seed, unsigned bits, unsigned zeros,
               std::uint64_t hold)
   {
      const Content content{seed, bits, zeros, hold};
      if (type == "F")
         add<float>(name, type, vector, length, counter, content);
      else if (type == "D")
         add<double>(name, type, vector, length, counter, content);
      else if (type == "I")
         add<int>(name, type, vector, length, counter, content);
      else if (type == "i")
         add<unsigned>(name, type, vector, length, counter, content);
      else if (type == "L")
         add<Long64_t>(name, type, vector, length, counter, content);
      else if (type == "O")
         addArray<bool>(name, type, length, counter, content);
      else
         throw std::invalid_argument("type " + type);
   }

   void fill(Long64_t first, Long64_t last)
   {
      for (Long64_t event = first; event < last; ++event) {
         for (auto &column : fColumns)
            column->fill(static_cast<std::uint64_t>(event));
         if (fTree->Fill() < 0)
            throw std::runtime_error("cannot be written");
      }
      checkWritten(*fFile);
   }

   void close() { finish(*fFile); }

private:
   template <class T>
   void add(const std::string &name, const std::string &type, bool vector, int length,
            const std::string &counter, const Content &content)
   {
      if (!vector)
         return addArray<T>(name, type, length, counter, content);
      auto column = std::make_unique<Vector<T>>(content, *fCounters.at(counter));
      fTree->Branch(name.c_str(), &column->address);
      fColumns.push_back(std::move(column));
   }

   template <class T>
   void addArray(const std::string &name, const std::string &type, int length,
                 const std::string &counter, const Content &content)
   {
      const Counter *counted = nullptr;
      std::string leaf = name;
      if (!counter.empty()) {
         counted = fCounters.at(counter);
         length = counted->capacity();
         leaf += "[" + counter + "]";
      } else if (length > 1) {
         leaf += "[" + std::to_string(length) + "]";
      }
      auto column = std::make_unique<Array<T>>(content, length, counted);
      fTree->Branch(name.c_str(), column->values.get(), (leaf + "/" + type).c_str());
      fColumns.push_back(std::move(column));
   }

   std::map<std::string, const Counter *> fCounters;
   std::vector<std::unique_ptr<Column>> fColumns;
   std::unique_ptr<TFile> fFile; // destroyed before the columns its tree points to
   TTree *fTree = nullptr;
};

} // namespace treehammer
